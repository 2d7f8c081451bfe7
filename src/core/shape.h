// Tensor shapes with overflow-checked sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace adder {

using Shape = std::vector<int64_t>;

// Product of the dimensions (1 for a scalar); nothing when a dimension is negative or the product
// does not fit in int64.
std::optional<int64_t> ElementCount(const Shape& shape);

// "[2, 3]".
std::string ShapeString(const Shape& shape);

}  // namespace adder
