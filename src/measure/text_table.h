// Tables of a fixed-width text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace adder {

// "1.23" with `digits` digits behind the point.
std::string FixedDigits(double value, int digits);

std::string Joined(const std::vector<std::string>& parts, std::string_view separator);

// Lines with columns as wide as their widest cell, two spaces apart. The first row is the header;
// the first column leans left, the others right. Rows may be shorter than the header.
std::string TextTable(const std::vector<std::vector<std::string>>& rows);

}  // namespace adder
