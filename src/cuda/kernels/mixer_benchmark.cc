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
#include "cuda/kernels/gated_delta.h"
#include "cuda/kernels/mamba2_deferred.h"
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

// Runs of one token whose slots of `floats` lie in another order than the sequences of the batch.
std::vector<SequenceRun> ShuffledRuns(float* slots, size_t floats, int batch) {
  std::vector<size_t> order(static_cast<size_t>(batch));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  std::vector<SequenceRun> runs;
  for (int i = 0; i < batch; ++i) {
    runs.push_back({slots + order[static_cast<size_t>(i)] * floats, nullptr, 100 + i, i, 1, 0});
  }
  return runs;
}

// Repeated: making so many random numbers takes longer than measuring.
DeviceArray<float> RepeatedFloats(size_t count) {
  const std::vector<float> some = RandomFloats(1, 1 << 20, -0.1f, 0.1f);
  std::vector<float> floats(count);
  for (size_t i = 0; i < count; ++i) floats[i] = some[i % some.size()];
  return DeviceArray<float>(floats);
}

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
  const size_t ring = (static_cast<size_t>(kDeferredTokens * DeferredRow(p).floats) + 63) / 64 * 64;
  const size_t layer = state + ring + (4 * channels + 63) / 64 * 64;
  const size_t layers = std::clamp<size_t>(kOutOfCache / (4 * layer * rows), 4, kChain);
  const DeviceArray<float> slots = RepeatedFloats(layer * layers * rows);
  const DeviceArray<float> weights(RandomFloats(2, layers * 6 * channels));
  p.projected_stride = static_cast<int>(2 * heads * static_cast<size_t>(c.head_dim) +
                                        2 * 128 * static_cast<size_t>(c.groups) + heads);
  p.output_stride = p.inner();
  const DeviceArray<float> projected(
      RandomFloats(3, rows * static_cast<size_t>(p.projected_stride)));
  const DeviceArray<float> output(rows * static_cast<size_t>(p.inner()));
  const DeviceArray<SequenceRun> device_runs(ShuffledRuns(slots.data(), layer * layers, batch));
  p.runs = device_runs.data();
  p.run_count = batch;
  p.projected = projected.data();
  p.output = output.data();
  const Stream stream;
  const size_t written = state / kDeferredTokens;
  Time(name, static_cast<double>(rows * (4 * (state + written) + 16 * channels)), stream,
       [&](int i) {
         const size_t index = static_cast<size_t>(i) % layers;
         Mamba2Params of_layer = p;
         of_layer.conv_offset = static_cast<long long>(index * layer);
         of_layer.ssm_offset = static_cast<long long>((index + 1) * layer - state);
         of_layer.deferred_offset = static_cast<long long>((index + 1) * layer - state - ring);
         const float* w = weights.data() + index * 6 * channels;
         of_layer.conv_weight = w;
         of_layer.conv_bias = w + 4 * channels;
         of_layer.dt_bias = w + 5 * channels;
         of_layer.a = w + 5 * channels + heads;
         of_layer.d = w + 5 * channels + 2 * heads;
         LaunchMamba2Step(of_layer, stream.get());
       });
}

struct DeltaCase {
  const char* model;
  int key_heads;
  int value_heads;
  bool per_channel;
};

void TimeGatedDelta(const DeltaCase& c, int batch) {
  const std::string name =
      std::string("gated delta ") + c.model + " batch " + std::to_string(batch);
  if (!Wanted(name)) return;
  constexpr size_t kDim = 128;
  GatedDeltaParams p;
  p.key_heads = c.key_heads;
  p.value_heads = c.value_heads;
  p.key_dim = p.value_dim = kDim;
  p.decay_per_channel = c.per_channel;
  p.qk_eps = p.norm_eps = 1e-6f;
  p.d_conv = 4;
  p.exact = false;
  const auto channels = static_cast<size_t>(p.conv_channels());
  const auto rows = static_cast<size_t>(batch);
  const auto heads = static_cast<size_t>(c.value_heads);
  const size_t decays = heads * (c.per_channel ? kDim : 1);
  const size_t state = heads * kDim * kDim;
  const size_t layer = state + 4 * channels;
  const size_t layers = std::clamp<size_t>(kOutOfCache / (4 * layer * rows), 4, kChain);
  const DeviceArray<float> slots = RepeatedFloats(layer * layers * rows);
  const DeviceArray<float> weights(RandomFloats(2, 4 * channels + decays + heads + kDim, -1, 0));
  const size_t width = channels + heads + decays + heads * kDim;
  const DeviceArray<float> projected(RandomFloats(3, rows * width));
  const DeviceArray<float> output(rows * heads * kDim);
  const DeviceArray<SequenceRun> device_runs(ShuffledRuns(slots.data(), layer * layers, batch));
  p.conv_weight = weights.data();
  p.dt_bias = p.conv_weight + 4 * channels;
  p.a = p.dt_bias + decays;
  p.norm_weight = p.a + heads;
  p.runs = device_runs.data();
  p.run_count = p.rows = batch;
  p.qkv = projected.data();
  p.beta = p.qkv + channels;
  p.decay = p.beta + heads;
  p.gate = p.decay + decays;
  p.qkv_stride = p.beta_stride = p.decay_stride = p.gate_stride = static_cast<int>(width);
  p.output = output.data();
  p.output_stride = static_cast<int>(heads * kDim);
  const Stream stream;
  const size_t written = state / kDeferredTokens;
  Time(name, static_cast<double>(rows * (4 * (state + written) + 16 * channels)), stream,
       [&](int i) {
         GatedDeltaParams of_layer = p;
         of_layer.state_offset = static_cast<long long>(static_cast<size_t>(i) % layers * layer);
         of_layer.conv_offset = of_layer.state_offset + static_cast<long long>(state);
         LaunchGatedDeltaStep(of_layer, stream.get());
       });
}

struct AttentionCase {
  const char* model;
  int heads;
  int kv_heads;
  int head_dim;
  int rotary_dim;
  bool normed = false;
  int window = 0;
};

void TimeAttention(const AttentionCase& c, int batch, int positions) {
  const std::string name = std::string("attention ") + c.model + " batch " + std::to_string(batch) +
                           " at " + std::to_string(positions);
  if (!Wanted(name)) return;
  const int head_dim = c.head_dim;
  constexpr int kPagePositions = 64;
  const auto rows = static_cast<size_t>(batch);
  const size_t pages = static_cast<size_t>(positions / kPagePositions + 1);
  const size_t layer = static_cast<size_t>(4 * kPagePositions * head_dim * c.kv_heads);
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
  const int width = (c.heads + 2 * c.kv_heads) * head_dim;
  const DeviceArray<float> qkv(RandomFloats(2, rows * static_cast<size_t>(width)));
  const DeviceArray<float> frequencies(RandomFloats(3, static_cast<size_t>(head_dim), 0, 1));
  const DeviceArray<float> output(rows * static_cast<size_t>(c.heads * head_dim));
  const DeviceArray<float> partial(AttentionScratchFloats(batch, c.heads, head_dim));
  const DeviceArray<unsigned> arrivals(AttentionCounters(batch, c.heads));
  AttentionParams p;
  p.heads = c.heads;
  p.kv_heads = c.kv_heads;
  p.head_dim = head_dim;
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
  p.output_stride = c.heads * head_dim;
  p.partial = partial.data();
  p.arrivals = arrivals.data();
  const DeviceArray<float> norm_weight(RandomFloats(4, static_cast<size_t>(head_dim), 0.5f, 1.5f));
  if (c.normed) p.q_norm = p.k_norm = {norm_weight.data(), head_dim, head_dim, 1e-6f};
  p.window = c.window;
  const Stream stream;
  const double bytes =
      static_cast<double>(rows) * positions * 4 * head_dim * static_cast<double>(c.kv_heads);
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
  for (const DeltaCase& c : {DeltaCase{"qwen3.5-0.8b", 16, 16, false},
                             {"qwen3.5-35b", 16, 32, false},
                             {"kimi-linear", 32, 32, true}}) {
    for (const int batch : {1, 8, 64}) TimeGatedDelta(c, batch);
  }
  for (const AttentionCase& c :
       {AttentionCase{"granite-350m", 12, 4, 64, 0}, AttentionCase{"llama-3.2-1b", 32, 8, 64, 64},
        AttentionCase{"qwen3.5-0.8b", 8, 2, 256, 64, true},
        AttentionCase{"lfm2-350m", 16, 8, 64, 64, true},
        AttentionCase{"falcon-h1-0.5b", 8, 2, 64, 64},
        AttentionCase{"plamo-2-1b", 16, 1, 128, 128, true, 2048},
        AttentionCase{"nemotron-3-nano", 32, 2, 128, 0}}) {
    for (const int positions : {64, 576}) TimeAttention(c, 1, positions);
    for (const int batch : {1, 8, 32, 128}) TimeAttention(c, batch, 512);
    TimeAttention(c, 128, 576);
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
