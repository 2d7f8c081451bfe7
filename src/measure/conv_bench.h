// The depthwise convolution of a decode step, three ways: what `adder bench conv` reports.
//
// A step has one new position. It needs, per channel, as many multiply-adds as the filter has taps,
// over a window of past inputs. The three ways:
//   step            adder's own: multiply-adds over the ring of past inputs, with bias, SiLU and
//   the
//                   ring's new row, in one kernel
//   cudnn           a convolution library's: cuDNN's grouped convolution, one group per channel,
//   over
//                   a window that lies ready; without bias, SiLU and window
//   multi_position  adder's kernel for prompts, run for one position; with bias and SiLU, f32 only
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/json.h"

namespace adder {

struct ConvShape {
  std::string family;  // model_type
  std::string model;
  int64_t channels = 0;
  int64_t taps = 0;
};

// Of known models with short causal convolutions, of families this build runs or not.
std::vector<ConvShape> KnownConvShapes();

// "1792x4": channels and taps. Throws Error for what is not such a shape, or out of range.
ConvShape ParseConvShape(const std::string& text);

struct ConvTiming {
  double seconds = 0;    // of one convolution, the median
  int64_t launches = 0;  // kernels of one convolution
  std::string kernel;    // plain names, in order
  double max_error = 0;  // against a sum in double precision, relative to 1 + |expected|
};

struct ConvBenchRow {
  ConvShape shape;
  DType dtype = DType::kF32;  // of inputs and outputs
  ConvTiming step;
  ConvTiming cudnn;
  ConvTiming multi_position;

  // Rounding of dtype allows for so much.
  double tolerance() const;
  bool agree() const;
  // The step takes one launch and no longer than either of the others.
  bool step_wins() const;
  std::string verdict() const;
};

std::string ConvBenchText(const std::vector<ConvBenchRow>& rows);
Json ConvBenchJson(const std::vector<ConvBenchRow>& rows);
// With a header line.
std::string ConvBenchCsv(const std::vector<ConvBenchRow>& rows);

}  // namespace adder
