// From a matrix's formats at run time to the template arguments of its kernel.
#pragma once

#include "cuda/kernels/packed_matrix.h"

namespace adder::cuda {

// Calls launch.operator()<format, wide scales>().
template <class LaunchWith>
void WithWeightFormat(const PackedMatrix& matrix, LaunchWith launch) {
  const bool wide = matrix.scale_format == ScaleFormat::kWide;
  switch (matrix.format) {
    case WeightFormat::kQ4:
      return wide ? launch.template operator()<WeightFormat::kQ4, true>()
                  : launch.template operator()<WeightFormat::kQ4, false>();
    case WeightFormat::kQ8:
      return wide ? launch.template operator()<WeightFormat::kQ8, true>()
                  : launch.template operator()<WeightFormat::kQ8, false>();
    case WeightFormat::kBf16:
      return launch.template operator()<WeightFormat::kBf16, false>();
    case WeightFormat::kF16:
      return launch.template operator()<WeightFormat::kF16, false>();
    case WeightFormat::kF32:
      return launch.template operator()<WeightFormat::kF32, false>();
  }
}

}  // namespace adder::cuda
