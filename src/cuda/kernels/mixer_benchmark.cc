// Times the decode kernels that are not matrices, each in a chain of many inside one graph, as they
// run in a decode step: with programmatic edges, other state each time, and state that has left the
// cache. Prints microseconds per kernel and, of the bytes that it must move, GB/s.
//   mixer_benchmark [FILTER]      (a part of a row's name)
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "cuda/kernels/attention.h"
#include "cuda/kernels/chain_for_benchmark.h"
#include "cuda/kernels/device_data_for_test.h"
#include "cuda/kernels/mamba2.h"
#include "cuda/kernels/rms_norm.h"
#include "cuda/kernels/sample.h"

namespace adder::cuda {
namespace {

constexpr int kRepeats = 21;
constexpr int kChain = 96;
// State of so many bytes does not stay in a cache until its next turn.
constexpr size_t kOutOfCache = size_t{256} << 20;

const char* filter = "";

// `launch` puts the i-th kernel of the chain on the stream.
void Time(const std::string& name, double bytes, const Stream& stream,
          const std::function<void(int)>& launch) {
  const ChainTimes times = TimeChain(stream, kChain, kRepeats, launch);
  std::printf("%-44s %8.2f us %8.0f GB/s   (%.2f to %.2f)\n", name.c_str(), times.median,
              bytes / times.median * 1e-3, times.least, times.most);
}

bool Wanted(const std::string& name) { return name.find(filter) != std::string::npos; }

struct MambaCase {
  const char* model;
  int heads;
  int head_dim;
  int groups;
};

void TimeMamba2(const MambaCase& c, int batch) {
  const std::string name = std::string("mamba2 ") + c.model + " batch " + std::to_string(batch);
  if (!Wanted(name)) return;
  Mamba2Params p;
  p.heads = c.heads;
  p.head_dim = c.head_dim;
  p.d_state = 128;
  p.groups = c.groups;
  p.d_conv = 4;
  p.dt_max = 100;
  const auto channels = static_cast<size_t>(p.conv_channels());
  const auto rows = static_cast<size_t>(batch);
  const auto heads = static_cast<size_t>(c.heads);
  const size_t state = heads * 128 * static_cast<size_t>(c.head_dim);
  const size_t layer = state + (4 * channels + 63) / 64 * 64;
  p.ssm_offset = static_cast<long long>(layer - state);
  const size_t layers = std::clamp<size_t>(kOutOfCache / (4 * layer * rows), 4, kChain);
  // Repeated: making so many random numbers takes longer than measuring.
  const std::vector<float> some = RandomFloats(1, 1 << 20, -0.1f, 0.1f);
  std::vector<float> state_floats(layer * layers * rows);
  for (size_t i = 0; i < state_floats.size(); ++i) state_floats[i] = some[i % some.size()];
  const DeviceArray<float> slots(state_floats);
  const DeviceArray<float> weights(RandomFloats(2, layers * 6 * channels));
  p.projected_stride = static_cast<int>(2 * heads * static_cast<size_t>(c.head_dim) +
                                        2 * 128 * static_cast<size_t>(c.groups) + heads);
  p.output_stride = p.inner();
  const DeviceArray<float> projected(
      RandomFloats(3, rows * static_cast<size_t>(p.projected_stride)));
  const DeviceArray<float> output(rows * static_cast<size_t>(p.inner()));
  // Slots lie in another order than the sequences of the batch.
  std::vector<size_t> order(rows);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  std::vector<SequenceRun> runs;
  for (int i = 0; i < batch; ++i) {
    runs.push_back(
        {slots.data() + order[static_cast<size_t>(i)] * layer * layers, nullptr, 100 + i, i, 1, 0});
  }
  const DeviceArray<SequenceRun> device_runs(runs);
  p.runs = device_runs.data();
  p.run_count = batch;
  p.projected = projected.data();
  p.output = output.data();
  const Stream stream;
  Time(name, static_cast<double>(rows * (8 * state + 16 * channels)), stream, [&](int i) {
    const size_t index = static_cast<size_t>(i) % layers;
    Mamba2Params of_layer = p;
    of_layer.conv_offset = static_cast<long long>(index * layer);
    of_layer.ssm_offset = static_cast<long long>(index * layer + (layer - state));
    const float* w = weights.data() + index * 6 * channels;
    of_layer.conv_weight = w;
    of_layer.conv_bias = w + 4 * channels;
    of_layer.dt_bias = w + 5 * channels;
    of_layer.a = w + 5 * channels + heads;
    of_layer.d = w + 5 * channels + 2 * heads;
    LaunchMamba2Step(of_layer, stream.get());
  });
}

struct AttentionCase {
  const char* model;
  int heads;
  int kv_heads;
  int rotary_dim;
};

void TimeAttention(const AttentionCase& c, int batch, int positions) {
  const std::string name = std::string("attention ") + c.model + " batch " + std::to_string(batch) +
                           " at " + std::to_string(positions);
  if (!Wanted(name)) return;
  constexpr int kHeadDim = 64;
  constexpr int kPagePositions = 64;
  const auto rows = static_cast<size_t>(batch);
  const size_t pages = static_cast<size_t>(positions / kPagePositions + 1);
  const size_t layer = 4 * kPagePositions * kHeadDim * static_cast<size_t>(c.kv_heads);
  const size_t layers = std::clamp<size_t>(kOutOfCache / (layer * pages * rows), 4, 32);
  const size_t page = layer * layers;
  // Bits of moderate bf16 numbers.
  std::vector<unsigned short> bits(1 << 20);
  std::mt19937 random(1);
  for (unsigned short& b : bits) b = static_cast<unsigned short>(0x3d00 + random() % 0x0200);
  const DeviceMemory data(page * pages * rows);
  for (size_t at = 0; at < data.bytes(); at += 2 * bits.size()) {
    Check(cudaMemcpy(data.as<char>() + at, bits.data(),
                     std::min(2 * bits.size(), data.bytes() - at), cudaMemcpyHostToDevice),
          "cudaMemcpy");
  }
  std::vector<char*> table;
  for (size_t i = 0; i < pages * rows; ++i) table.push_back(data.as<char>() + i * page);
  std::shuffle(table.begin(), table.end(), random);
  const DeviceArray<char*> device_table(table);
  std::vector<SequenceRun> runs;
  std::vector<int> identity(rows);
  std::iota(identity.begin(), identity.end(), 0);
  for (int i = 0; i < batch; ++i) {
    runs.push_back(
        {nullptr, device_table.data() + static_cast<size_t>(i) * pages, positions, i, 1, 0});
  }
  const DeviceArray<SequenceRun> device_runs(runs);
  const DeviceArray<int> row_runs(identity);
  const int width = (c.heads + 2 * c.kv_heads) * kHeadDim;
  const DeviceArray<float> qkv(RandomFloats(2, rows * static_cast<size_t>(width)));
  const DeviceArray<float> frequencies(RandomFloats(3, kHeadDim, 0, 1));
  const DeviceArray<float> output(rows * static_cast<size_t>(c.heads * kHeadDim));
  const DeviceArray<float> partial(AttentionScratchFloats(batch, c.heads, kHeadDim));
  const DeviceArray<unsigned> arrivals(AttentionCounters(batch, c.heads));
  AttentionParams p;
  p.heads = c.heads;
  p.kv_heads = c.kv_heads;
  p.head_dim = kHeadDim;
  p.scale = 0.125f;
  p.inverse_frequencies = c.rotary_dim > 0 ? frequencies.data() : nullptr;
  p.rotary_dim = c.rotary_dim;
  p.page_positions = kPagePositions;
  p.runs = device_runs.data();
  p.run_count = batch;
  p.rows = batch;
  p.row_runs = row_runs.data();
  p.qkv = qkv.data();
  p.qkv_stride = width;
  p.output = output.data();
  p.output_stride = c.heads * kHeadDim;
  p.partial = partial.data();
  p.arrivals = arrivals.data();
  const Stream stream;
  const double bytes =
      static_cast<double>(rows) * positions * 4 * kHeadDim * static_cast<double>(c.kv_heads);
  Time(name, bytes, stream, [&](int i) {
    AttentionParams of_layer = p;
    of_layer.kv_offset = static_cast<long long>(static_cast<size_t>(i) % layers * layer);
    LaunchAttentionStep(of_layer, stream.get());
  });
}

// peaked: few tokens are likely, as in text; otherwise thousands are.
void TimeSample(const char* kind, bool peaked, int batch, float temperature, int top_k,
                float top_p) {
  constexpr int vocab = 100352;
  const std::string name = std::string("sample ") + kind + (peaked ? " peaked" : " flat") +
                           " batch " + std::to_string(batch);
  if (!Wanted(name)) return;
  const auto rows = static_cast<size_t>(batch);
  // Of several steps, so that they lie in the L2 cache at most as after the head's matrix.
  constexpr size_t kBuffers = 4;
  const size_t floats = rows * static_cast<size_t>(vocab);
  std::vector<float> values = RandomFloats(1, kBuffers * floats, 1e-6f, 1);
  for (float& value : values) value = peaked ? -1.2f * std::log(value) : 16 * value;
  const DeviceArray<float> logits(values);
  std::vector<SamplingRow> sampling(rows);
  for (size_t i = 0; i < rows; ++i) {
    sampling[i] = {};
    sampling[i].temperature = temperature;
    sampling[i].top_p = top_p;
    sampling[i].top_k = top_k;
    sampling[i].repeat_penalty = 1;
    sampling[i].active = 1;
    sampling[i].seed = i;
  }
  const DeviceArray<SamplingRow> device_sampling(sampling);
  const DeviceArray<int> history(rows * kHistoryTokens);
  const DeviceArray<SequenceRun> runs(rows);
  const DeviceArray<int> tokens(rows);
  const PinnedMemory chosen(kOutputSteps * rows * sizeof(int));
  SampleParams p;
  p.stride = vocab;
  p.vocab = vocab;
  p.rows = batch;
  p.sampling = device_sampling.data();
  p.history = history.data();
  p.runs = runs.data();
  p.tokens = tokens.data();
  p.output = chosen.as<int>();
  p.output_stride = batch;
  const Stream stream;
  Time(name, static_cast<double>(4 * floats), stream, [&](int i) {
    SampleParams of_step = p;
    of_step.logits = logits.data() + static_cast<size_t>(i) % kBuffers * floats;
    LaunchSample(of_step, stream.get());
  });
}

void TimeRmsNorm(int width, int groups, int batch) {
  const std::string name = "rms norm of " + std::to_string(width) + " in " +
                           std::to_string(groups) + " batch " + std::to_string(batch);
  if (!Wanted(name)) return;
  const auto floats = static_cast<size_t>(width) * static_cast<size_t>(batch);
  const DeviceArray<float> input(RandomFloats(1, floats));
  const DeviceArray<float> weight(RandomFloats(2, static_cast<size_t>(width)));
  const DeviceArray<float> output(floats);
  RmsNormParams p;
  p.input = input.data();
  p.stride = width;
  p.rows = batch;
  p.width = width;
  p.groups = groups;
  p.weight = weight.data();
  p.eps = 1e-5f;
  p.output = output.data();
  const Stream stream;
  Time(name, static_cast<double>(8 * floats), stream, [&](int) { LaunchRmsNorm(p, stream.get()); });
}

void TimeAll() {
  for (const MambaCase& c : {MambaCase{"granite-350m", 48, 32, 1}, {"mamba2-1.3b", 64, 64, 1}}) {
    for (const int batch : {1, 2, 8, 32, 128}) TimeMamba2(c, batch);
  }
  for (const AttentionCase& c :
       {AttentionCase{"granite-350m", 12, 4, 0}, AttentionCase{"llama-3.2-1b", 32, 8, 64}}) {
    for (const int batch : {1, 8, 32, 128}) TimeAttention(c, batch, 512);
    for (const int batch : {1, 8}) TimeAttention(c, batch, 8192);
  }
  for (const int batch : {1, 128}) {
    TimeSample("greedy", true, batch, 0, 0, 1);
    for (const bool peaked : {true, false}) {
      TimeSample("temperature", peaked, batch, 0.8f, 0, 1);
      TimeSample("top-k 40", peaked, batch, 0.8f, 40, 1);
      TimeSample("top-k 500", peaked, batch, 0.8f, 500, 1);
      TimeSample("top-p 0.9", peaked, batch, 0.8f, 0, 0.9f);
    }
  }
  for (const int batch : {1, 128}) TimeRmsNorm(8192, 8, batch);
}

}  // namespace
}  // namespace adder::cuda

int main(int argc, char** argv) {
  if (argc > 1) adder::cuda::filter = argv[1];
  try {
    adder::cuda::TimeAll();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
