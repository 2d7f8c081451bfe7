#include "measure/cuda/conv_runner.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "core/error.h"
#include "cuda/cuda_call.h"
#include "cuda/cuda_executor.h"
#include "cuda/device_memory.h"
#include "cuda/kernels/mamba2.h"
#include "engine/sampler.h"
#include "measure/cuda/conv_kernels.h"
#include "measure/cuda/cudnn_conv.h"
#include "measure/cuda/cupti_trace.h"
#include "measure/text_table.h"

namespace adder {
namespace {

using cuda::Check;

// Convolutions in a timed graph, and how often it runs.
constexpr int kPerGraph = 64;
constexpr int kRepeats = 25;
// Not a multiple of the taps: rows of the ring are out of order.
constexpr int kPosition = 10;

// Uniform in [-1, 1), never zero.
std::vector<float> RandomValues(RandomStream& random, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = static_cast<float>(2 * random.NextUniform() - 1);
    if (value == 0) value = 0.5f;
  }
  return values;
}

// Values as `dtype` holds them: the bytes, and what they mean.
struct Encoded {
  std::vector<std::byte> bytes;
  std::vector<float> values;
};
Encoded Encode(const std::vector<float>& values, DType dtype) {
  Encoded encoded;
  const size_t size = DTypeSize(dtype);
  encoded.bytes.resize(values.size() * size);
  for (size_t i = 0; i < values.size(); ++i) {
    std::byte* to = encoded.bytes.data() + i * size;
    if (dtype == DType::kF32) {
      std::copy_n(reinterpret_cast<const std::byte*>(&values[i]), size, to);
    } else {
      const uint16_t bits = dtype == DType::kF16 ? FloatToF16(values[i]) : FloatToBF16(values[i]);
      std::copy_n(reinterpret_cast<const std::byte*>(&bits), size, to);
    }
    encoded.values.push_back(LoadFloat(encoded.bytes.data(), dtype, i));
  }
  return encoded;
}

template <class T>
cuda::DeviceMemory OnDevice(const std::vector<T>& values) {
  cuda::DeviceMemory memory(values.size() * sizeof(T));
  Check(cudaMemcpy(memory.data(), values.data(), memory.bytes(), cudaMemcpyHostToDevice),
        "copying the convolution's input");
  return memory;
}

double Silu(double x) { return x / (1 + std::exp(-x)); }

// One shape in one dtype, with everything the three ways need.
class Case {
 public:
  Case(const ConvShape& shape, DType dtype, const CudnnLibrary& cudnn, const cuda::Stream& stream)
      : stream_(stream),
        channels_(shape.channels),
        taps_(shape.taps),
        cudnn_(cudnn, shape.channels, shape.taps, dtype, stream) {
    row_.shape = shape;
    row_.dtype = dtype;
    RandomStream random(static_cast<uint64_t>(shape.channels * 16 + shape.taps));
    // Weights that the dtype can hold, so that all three compute the same.
    const Encoded weight = Encode(RandomValues(random, taps_ * channels_), dtype);
    const Encoded inputs = Encode(RandomValues(random, taps_ * channels_), dtype);
    const std::vector<float> bias = RandomValues(random, channels_);
    FillExpected(weight.values, inputs.values, bias);

    // inputs: row t is position kPosition - (taps - 1) + t. The ring has its rows elsewhere, and
    // random numbers where the step has to write.
    const size_t row_bytes = static_cast<size_t>(channels_) * DTypeSize(dtype);
    std::vector<std::byte> ring = Encode(RandomValues(random, taps_ * channels_), dtype).bytes;
    std::vector<float> ring_f32 = RandomValues(random, taps_ * channels_);
    for (int64_t tap = 0; tap + 1 < taps_; ++tap) {
      const auto to = static_cast<size_t>((kPosition + 1 + tap) % taps_);
      const auto from = static_cast<size_t>(tap);
      std::copy_n(inputs.bytes.begin() + Offset(from * row_bytes), row_bytes,
                  ring.begin() + Offset(to * row_bytes));
      std::copy_n(inputs.values.begin() + Offset(from) * channels_, channels_,
                  ring_f32.begin() + Offset(to) * channels_);
    }
    std::vector<std::byte> window(inputs.bytes.size());
    std::vector<std::byte> filter(inputs.bytes.size());
    const size_t size = DTypeSize(dtype);
    for (int64_t channel = 0; channel < channels_; ++channel) {
      for (int64_t tap = 0; tap < taps_; ++tap) {
        const auto from = Offset(static_cast<size_t>(tap * channels_ + channel) * size);
        const auto to = Offset(static_cast<size_t>(channel * taps_ + tap) * size);
        std::copy_n(inputs.bytes.begin() + from, size, window.begin() + to);
        std::copy_n(weight.bytes.begin() + from, size, filter.begin() + to);
      }
    }
    const std::vector<std::byte> newest(inputs.bytes.end() - Offset(row_bytes), inputs.bytes.end());
    weight_ = OnDevice(weight.values);
    bias_ = OnDevice(bias);
    newest_ = OnDevice(newest);
    // Projected rows as the prefill kernel reads them: z, then the convolution's input.
    std::vector<float> projected = RandomValues(random, channels_);
    projected.insert(projected.end(), inputs.values.end() - Offset(static_cast<size_t>(channels_)),
                     inputs.values.end());
    projected_ = OnDevice(projected);
    ring_ = OnDevice(ring);
    ring_f32_ = OnDevice(ring_f32);
    window_ = OnDevice(window);
    filter_ = OnDevice(filter);
    output_ = cuda::DeviceMemory(row_bytes);
    output_f32_ = cuda::DeviceMemory(static_cast<size_t>(channels_) * sizeof(float));
    const std::vector<cuda::SequenceRun> runs{{ring_f32_.as<float>(), nullptr, kPosition, 0, 1, 0}};
    run_ = OnDevice(runs);
  }

  ConvBenchRow& row() { return row_; }

  // Traces and checks one convolution of each kind.
  void TraceAll(CuptiTrace& tracer) {
    ForEachWay([&](ConvTiming& timing, const cuda::DeviceMemory& output, DType dtype,
                   const std::vector<double>& expected, const auto& run) {
      run();  // what the first call alone does is not part of a step
      Check(cudaMemsetAsync(output.data(), 0xff, output.bytes(), stream_.get()), "cudaMemset");
      tracer.Begin();
      run();
      const DeviceTrace trace = tracer.End();
      timing.launches =
          static_cast<int64_t>(trace.kernels.size() + trace.memcpys.size() + trace.memsets.size());
      std::vector<std::string> kernels;
      for (const TracedWork& kernel : trace.kernels) kernels.push_back(kernel.name);
      timing.kernel = Joined(kernels, ", ");
      timing.max_error = Error(output, dtype, expected);
    });
  }

  void TimeAll() {
    ForEachWay([&](ConvTiming& timing, const cuda::DeviceMemory&, DType, const std::vector<double>&,
                   const auto& run) { timing.seconds = Time(run); });
  }

 private:
  static std::ptrdiff_t Offset(size_t value) { return static_cast<std::ptrdiff_t>(value); }

  void FillExpected(const std::vector<float>& weight, const std::vector<float>& inputs,
                    const std::vector<float>& bias) {
    for (int64_t channel = 0; channel < channels_; ++channel) {
      double sum = 0;
      for (int64_t tap = 0; tap < taps_; ++tap) {
        const auto at = static_cast<size_t>(tap * channels_ + channel);
        sum += static_cast<double>(weight[at]) * static_cast<double>(inputs[at]);
      }
      plain_.push_back(sum);
      activated_.push_back(Silu(sum + static_cast<double>(bias[static_cast<size_t>(channel)])));
    }
  }

  template <class Visit>
  void ForEachWay(Visit visit) {
    visit(row_.step, output_, row_.dtype, activated_, [&] {
      ConvStepParams params;
      params.channels = static_cast<int>(channels_);
      params.taps = static_cast<int>(taps_);
      params.position = kPosition;
      params.weight = weight_.as<const float>();
      params.bias = bias_.as<const float>();
      params.input = newest_.data();
      params.ring = ring_.data();
      params.output = output_.data();
      LaunchConvStep(params, row_.dtype, stream_.get());
    });
    visit(row_.cudnn, output_, row_.dtype, plain_,
          [&] { cudnn_.Run(window_.data(), filter_.data(), output_.data()); });
    visit(row_.multi_position, output_f32_, DType::kF32, activated_, [&] {
      // A mixer whose convolution runs over x alone.
      cuda::Mamba2Params params;
      params.heads = static_cast<int>(channels_);
      params.head_dim = 1;
      params.groups = 0;
      params.d_conv = static_cast<int>(taps_);
      params.conv_weight = weight_.as<const float>();
      params.conv_bias = bias_.as<const float>();
      params.runs = run_.as<const cuda::SequenceRun>();
      params.run_count = 1;
      params.projected = projected_.as<const float>();
      params.projected_stride = static_cast<int>(2 * channels_);
      cuda::LaunchCausalConv(params, /*most_tokens=*/1, output_f32_.as<float>(), stream_.get());
    });
  }

  double Error(const cuda::DeviceMemory& output, DType dtype, const std::vector<double>& expected) {
    std::vector<std::byte> bytes(output.bytes());
    Check(cudaMemcpy(bytes.data(), output.data(), bytes.size(), cudaMemcpyDeviceToHost),
          "copying the convolution's result");
    double error = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double found = static_cast<double>(LoadFloat(bytes.data(), dtype, i));
      const double difference = std::abs(found - expected[i]) / (1 + std::abs(expected[i]));
      // Keeps what is not a number.
      if (!(difference <= error)) error = difference;
    }
    return error;
  }

  template <class Run>
  double Time(const Run& run) {
    const cuda::Graph graph = cuda::Graph::Capture(stream_, [&] {
      for (int i = 0; i < kPerGraph; ++i) run();
    });
    const cuda::Event begin(/*timing=*/true);
    const cuda::Event end(/*timing=*/true);
    std::vector<double> seconds;
    for (int i = 0; i < kRepeats + 2; ++i) {
      begin.Record(stream_);
      graph.Launch(stream_);
      end.Record(stream_);
      end.Synchronize();
      float milliseconds = 0;
      Check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "cudaEventElapsedTime");
      if (i >= 2) seconds.push_back(static_cast<double>(milliseconds) * 1e-3 / kPerGraph);
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }

  const cuda::Stream& stream_;
  const int64_t channels_;
  const int64_t taps_;
  CudnnConv cudnn_;
  ConvBenchRow row_;
  std::vector<double> plain_;      // the convolution
  std::vector<double> activated_;  // with bias and SiLU
  cuda::DeviceMemory weight_;
  cuda::DeviceMemory bias_;
  cuda::DeviceMemory newest_;
  cuda::DeviceMemory projected_;
  cuda::DeviceMemory ring_;
  cuda::DeviceMemory ring_f32_;
  cuda::DeviceMemory window_;
  cuda::DeviceMemory filter_;
  cuda::DeviceMemory output_;
  cuda::DeviceMemory output_f32_;
  cuda::DeviceMemory run_;
};

}  // namespace

std::vector<ConvBenchRow> RunConvBench(const std::vector<ConvShape>& shapes,
                                       const std::vector<DType>& dtypes,
                                       const std::function<void(double fraction)>& progress) {
  std::string reason;
  if (!CudaAvailable(&reason)) Fail("Cannot compare convolutions on a GPU: ", reason, ".");
  const std::shared_ptr<const CudnnLibrary> cudnn = LoadCudnn();
  auto tracer = std::make_unique<CuptiTrace>();
  const cuda::Stream stream;
  std::vector<std::unique_ptr<Case>> cases;
  const double all = 2 * static_cast<double>(shapes.size() * dtypes.size());
  for (const ConvShape& shape : shapes) {
    for (DType dtype : dtypes) {
      cases.push_back(std::make_unique<Case>(shape, dtype, *cudnn, stream));
      cases.back()->TraceAll(*tracer);
      progress(static_cast<double>(cases.size()) / all);
    }
  }
  tracer.reset();
  std::vector<ConvBenchRow> rows;
  for (const std::unique_ptr<Case>& one : cases) {
    one->TimeAll();
    rows.push_back(one->row());
    progress(0.5 + static_cast<double>(rows.size()) / all);
  }
  return rows;
}

}  // namespace adder
