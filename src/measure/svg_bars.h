// A chart of horizontal bars as an SVG file.
#pragma once

#include <string>
#include <vector>

namespace adder {

struct SvgBar {
  std::string label;
  double value = 0;  // drawn from zero; less than that draws nothing
  std::string note;  // written behind the bar
};

// A complete file; bars from top to bottom, the longest as wide as there is room.
std::string SvgBars(const std::string& title, const std::vector<SvgBar>& bars);

}  // namespace adder
