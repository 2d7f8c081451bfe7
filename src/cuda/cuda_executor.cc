#include "cuda/cuda_executor.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <numeric>

#include "core/error.h"
#include "cuda/cuda_call.h"
#include "cuda/device_memory.h"
#include "cuda/device_state.h"
#include "cuda/device_weights.h"
#include "cuda/kernels/attention.h"
#include "cuda/kernels/batch_linear.h"
#include "cuda/kernels/linear.h"
#include "cuda/kernels/mamba2.h"
#include "cuda/kernels/rms_norm.h"
#include "cuda/kernels/sample.h"
#include "program/batch_checks.h"

namespace adder {
namespace cuda {
namespace {

// A batch is run in slices of at most so many tokens; results do not depend on it.
constexpr int kSliceRows = 512;
// Rows of logits computed at a time.
constexpr int kLogitsRows = 64;
// Largest batch of single tokens that runs as one graph.
constexpr int kMostDecodeRows = 256;

// A batch as kernels see it; the pointers are to device memory.
struct Slice {
  const SequenceRun* runs = nullptr;
  const int* tokens = nullptr;
  const int* row_runs = nullptr;     // which run a row belongs to
  const int* logits_rows = nullptr;  // rows whose logits are asked for; null: all
  int run_count = 0;
  int rows = 0;
  int most_tokens = 0;  // of any run
};

int Narrow(int64_t value) { return static_cast<int>(value); }

class CudaExecutor : public Executor {
 public:
  CudaExecutor(Program program, const CudaOptions& options)
      : program_((VerifyProgram(program), std::move(program))),
        f32_(options.f32),
        weights_(program_, stream_, options.progress),
        state_(program_, /*kv_bf16=*/!options.f32, stream_) {
    cudaDeviceProp properties{};
    int device = 0;
    Check(cudaGetDevice(&device), "cudaGetDevice");
    Check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    device_name_ = properties.name;
    multiprocessors_ = properties.multiProcessorCount;
    AllocateBuffers();
  }

  std::string Description() const override {
    return Concat("cuda (", device_name_, f32_ ? ", f32)" : ")");
  }
  const Program& program() const override { return program_; }

  SequenceId CreateSequence() override { return state_.Create(); }
  void FreeSequence(SequenceId sequence) override { state_.Free(sequence); }
  void ResetSequence(SequenceId sequence) override { state_.Reset(sequence); }
  int64_t Position(SequenceId sequence) const override { return state_.Position(sequence); }
  SequenceId CopySequence(SequenceId sequence) override { return state_.Copy(sequence); }
  std::vector<std::byte> ExportSequence(SequenceId sequence) const override {
    return state_.Export(sequence);
  }
  SequenceId ImportSequence(std::span<const std::byte> bytes) override {
    return state_.Import(bytes);
  }
  int64_t WeightBytes() const override { return weights_.bytes(); }
  int64_t StateBytes() const override { return state_.Bytes(); }

  void Forward(const Batch& batch) override {
    Run(batch, static_cast<int>(program_.ops.size()) - 1, nullptr);
  }

  std::vector<float> ForwardUntil(const Batch& batch, int last_op) override {
    CheckLastOp(program_, last_op);
    std::vector<float> values;
    Run(batch, last_op, &values);
    return values;
  }

  std::unique_ptr<DecodeStream> StartDecode(std::span<const DecodeRow> rows) override;

  int64_t LogitsCount() const override { return logits_count_; }
  std::span<const float> Logits(int64_t row) const override {
    CheckLogitsRow(*this, row);
    if (!logits_ready_) {
      stream_.Synchronize();
      logits_ready_ = true;
    }
    const int64_t vocab = program_.plan->vocab;
    return {host_logits_.as<float>() + row * vocab, static_cast<size_t>(vocab)};
  }

 private:
  // ---- buffers

  int Width(BufferId id) const { return Narrow(program_.buffers[static_cast<size_t>(id)].width); }
  // Rows begin on 16-byte boundaries.
  int Stride(BufferId id) const { return (Width(id) + 3) / 4 * 4; }
  float* Values(BufferId id) const { return buffers_[static_cast<size_t>(id)]; }

  // Buffers that matrices read also exist rounded to bf16, in rows of 16-byte multiples: matrix
  // kernels of many tokens read those. Kernels that can write both; after others a kernel rounds.
  int RoundedStride(BufferId id) const { return (Width(id) + 7) / 8 * 8; }

  // Where an op writes the rounded copy of its output; null: nobody will read it.
  uint16_t* RoundedOutput(BufferId id) {
    uint16_t* rounded = rounded_[static_cast<size_t>(id)];
    if (rounded == nullptr || !ReadsRounded(Shape(slice_.rows), slice_.rows)) return nullptr;
    rounded_fresh_[static_cast<size_t>(id)] = true;
    return rounded;
  }
  const uint16_t* RoundedInput(BufferId id) {
    const auto index = static_cast<size_t>(id);
    if (!rounded_fresh_[index]) {
      LaunchRound(Values(id), Stride(id), slice_.rows, Width(id), rounded_[index],
                  RoundedStride(id), stream_.get());
      rounded_fresh_[index] = true;
    }
    return rounded_[index];
  }

  void AllocateBuffers() {
    size_t total = 0;
    std::vector<size_t> offsets;
    const auto add = [&](size_t floats) {
      offsets.push_back(total);
      total += (floats + 63) / 64 * 64;
    };
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      const auto id = static_cast<BufferId>(b);
      const int rows = id == program_.logits ? kMostDecodeRows : kSliceRows;
      add(static_cast<size_t>(rows) * static_cast<size_t>(Stride(id)));
    }
    size_t convolved = 0;
    size_t partial = 0;
    size_t scores = 0;
    size_t normalized = 0;
    size_t counters = kSliceRows;
    for (const Op& op : program_.ops) {
      if (const auto* mamba = std::get_if<Mamba2Op>(&op.body)) {
        convolved =
            std::max(convolved, kSliceRows * static_cast<size_t>(mamba->mixer.conv_channels()));
      } else if (const auto* attention = std::get_if<AttentionOp>(&op.body)) {
        const Attention& m = attention->mixer;
        partial = std::max(partial,
                           AttentionScratchFloats(kSliceRows, Narrow(m.heads), Narrow(m.head_dim)));
        counters = std::max(counters, AttentionCounters(kSliceRows, Narrow(m.heads)));
      } else if (const auto* router = std::get_if<RouterOp>(&op.body)) {
        scores = std::max(scores, kSliceRows * static_cast<size_t>(router->experts));
      } else if (const auto* linear = std::get_if<LinearOp>(&op.body)) {
        if (linear->norm && linear->norm->groups > 1) {
          normalized =
              std::max(normalized, kSliceRows * static_cast<size_t>(Stride(linear->input)));
        }
      }
    }
    add(convolved);
    add(partial);
    add(scores);
    add(normalized);
    activations_ = DeviceMemory(total * sizeof(float));
    buffers_.clear();
    for (size_t offset : offsets) buffers_.push_back(activations_.as<float>() + offset);
    normalized_ = buffers_.back();
    scores_ = buffers_[buffers_.size() - 2];
    partial_ = buffers_[buffers_.size() - 3];
    convolved_ = buffers_[buffers_.size() - 4];
    AllocateRounded();
    counters_ = DeviceMemory(counters * sizeof(unsigned));
    Check(cudaMemsetAsync(counters_.data(), 0, counters_.bytes(), stream_.get()), "cudaMemset");

    constexpr size_t rows = kSliceRows;
    table_offsets_ = {0, rows * sizeof(SequenceRun), rows * (sizeof(SequenceRun) + 4),
                      rows * (sizeof(SequenceRun) + 8)};
    table_ = DeviceMemory(rows * (sizeof(SequenceRun) + 12));
    tables_.runs = table_.as<const SequenceRun>();
    tables_.tokens = reinterpret_cast<const int*>(table_.as<std::byte>() + table_offsets_[1]);
    tables_.row_runs = reinterpret_cast<const int*>(table_.as<std::byte>() + table_offsets_[2]);
    tables_.logits_rows = reinterpret_cast<const int*>(table_.as<std::byte>() + table_offsets_[3]);
  }

  void AllocateRounded() {
    rounded_.assign(program_.buffers.size(), nullptr);
    rounded_fresh_.assign(program_.buffers.size(), false);
    if (f32_) return;
    std::vector<size_t> offsets(program_.buffers.size(), 0);
    size_t total = 0;
    for (const Op& op : program_.ops) {
      BufferId input = kNoId;
      if (const auto* linear = std::get_if<LinearOp>(&op.body)) input = linear->input;
      if (const auto* router = std::get_if<RouterOp>(&op.body)) input = router->input;
      if (input == kNoId || rounded_fresh_[static_cast<size_t>(input)]) continue;
      rounded_fresh_[static_cast<size_t>(input)] = true;
      offsets[static_cast<size_t>(input)] = total;
      total += (kSliceRows * static_cast<size_t>(RoundedStride(input)) + 63) / 64 * 64;
    }
    rounded_memory_ = DeviceMemory(total * sizeof(uint16_t));
    for (size_t i = 0; i < rounded_.size(); ++i) {
      if (rounded_fresh_[i]) rounded_[i] = rounded_memory_.as<uint16_t>() + offsets[i];
      rounded_fresh_[i] = false;
    }
  }

  // ---- decoding on the device

  class DecodeOnDevice;

  void PrepareDecode() {
    if (decode_runs_.bytes() > 0) return;
    constexpr size_t kRows = kMostDecodeRows;
    decode_runs_ = DeviceMemory(kRows * sizeof(SequenceRun));
    decode_tokens_ = DeviceMemory(kRows * sizeof(int));
    decode_row_runs_ = DeviceMemory(kRows * sizeof(int));
    sampling_ = DeviceMemory(kRows * sizeof(SamplingRow));
    history_ = DeviceMemory(kRows * kHistoryTokens * sizeof(int));
    best_ = DeviceMemory(kRows * kMaxSampleBlocks * sizeof(float2));
    chosen_ = PinnedMemory(kOutputSteps * kRows * sizeof(int));
    std::vector<int> identity(kRows);
    std::iota(identity.begin(), identity.end(), 0);
    Upload(decode_row_runs_.data(), identity.data(), kRows * sizeof(int));
  }

  // Small enough that the driver takes the bytes at once: the host may change them afterwards.
  void Upload(void* to, const void* from, size_t bytes) {
    if (bytes == 0) return;
    Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_.get()),
          "copying a batch's table");
  }

  // The graph of one step of `bucket` rows: all ops, then sampling.
  const Graph& DecodeGraph(int bucket) {
    Graph& graph = graphs_[bucket];
    if (graph) return graph;
    graph = Graph::Capture(stream_, [&] {
      slice_ = {};
      slice_.runs = decode_runs_.as<const SequenceRun>();
      slice_.tokens = decode_tokens_.as<const int>();
      slice_.row_runs = decode_row_runs_.as<const int>();
      slice_.run_count = bucket;
      slice_.rows = bucket;
      slice_.most_tokens = 1;
      for (const Op& op : program_.ops) Launch(op);
      SampleParams params;
      params.logits = Values(program_.logits);
      params.stride = Stride(program_.logits);
      params.vocab = Narrow(program_.plan->vocab);
      params.rows = bucket;
      params.sampling = sampling_.as<SamplingRow>();
      params.history = history_.as<int>();
      params.runs = decode_runs_.as<SequenceRun>();
      params.tokens = decode_tokens_.as<int>();
      params.output = chosen_.as<int>();
      params.output_stride = kMostDecodeRows;
      params.best = best_.as<float2>();
      params.arrivals = counters_.as<unsigned>();
      LaunchSample(params, stream_.get());
    });
    return graph;
  }

  // ---- batches and slices

  void Run(const Batch& batch, int last_op, std::vector<float>* values) {
    CheckBatch(*this, batch);
    int64_t asked = 0;
    for (const BatchEntry& entry : batch) {
      const auto tokens = static_cast<int64_t>(entry.tokens.size());
      state_.Reserve(entry.sequence, tokens);
      asked += entry.logits == LogitsRows::kAll ? tokens : entry.logits == LogitsRows::kLast;
    }
    const size_t logits_bytes =
        static_cast<size_t>(asked) * static_cast<size_t>(program_.plan->vocab) * sizeof(float);
    if (logits_bytes > host_logits_.bytes()) host_logits_ = PinnedMemory(logits_bytes);
    logits_count_ = 0;
    logits_ready_ = false;

    size_t next = 0;
    int64_t done = 0;  // tokens of batch[next]
    while (next < batch.size()) {
      runs_.clear();
      tokens_.clear();
      row_runs_.clear();
      logits_rows_.clear();
      std::vector<std::pair<SequenceId, int>> advanced;
      while (next < batch.size() && tokens_.size() < kSliceRows) {
        const BatchEntry& entry = batch[next];
        const auto size = static_cast<int64_t>(entry.tokens.size());
        const auto row = static_cast<int64_t>(tokens_.size());
        const int64_t take = std::min(size - done, kSliceRows - row);
        runs_.push_back(state_.Run(entry.sequence, Narrow(row), Narrow(take)));
        advanced.emplace_back(entry.sequence, Narrow(take));
        for (int64_t i = done; i < done + take; ++i) {
          if (entry.logits == LogitsRows::kAll ||
              (entry.logits == LogitsRows::kLast && i + 1 == size)) {
            logits_rows_.push_back(Narrow(static_cast<int64_t>(tokens_.size())));
          }
          row_runs_.push_back(Narrow(static_cast<int64_t>(runs_.size()) - 1));
          tokens_.push_back(entry.tokens[static_cast<size_t>(i)]);
        }
        done += take;
        if (done == size) {
          ++next;
          done = 0;
        }
      }
      RunSlice(last_op, values);
      for (const auto& [sequence, count] : advanced) state_.Advance(sequence, count);
    }
  }

  template <class T>
  void UploadTable(size_t offset, const std::vector<T>& values) {
    Upload(table_.as<std::byte>() + offset, values.data(), values.size() * sizeof(T));
  }

  void RunSlice(int last_op, std::vector<float>* values) {
    UploadTable(table_offsets_[0], runs_);
    UploadTable(table_offsets_[1], tokens_);
    UploadTable(table_offsets_[2], row_runs_);
    UploadTable(table_offsets_[3], logits_rows_);
    slice_ = tables_;
    slice_.rows = Narrow(static_cast<int64_t>(tokens_.size()));
    slice_.run_count = Narrow(static_cast<int64_t>(runs_.size()));
    for (const SequenceRun& run : runs_) {
      slice_.most_tokens = std::max(slice_.most_tokens, run.tokens);
    }
    for (int i = 0; i < last_op; ++i) Launch(program_.ops[static_cast<size_t>(i)]);
    const Op& last = program_.ops[static_cast<size_t>(last_op)];
    const auto* head = std::get_if<LinearOp>(&last.body);
    if (head == nullptr || !head->logits_rows_only) {
      Launch(last);
      if (values != nullptr) Collect(OutputOf(last), slice_.rows, *values);
      return;
    }
    // The logits, a few rows at a time.
    const auto asked = static_cast<int>(logits_rows_.size());
    const auto vocab = static_cast<size_t>(program_.plan->vocab);
    for (int first = 0; first < asked; first += kLogitsRows) {
      const int count = std::min(kLogitsRows, asked - first);
      LaunchLinearOp(*head, count, slice_.logits_rows + first);
      Check(cudaMemcpy2DAsync(host_logits_.as<float>() + static_cast<size_t>(logits_count_) * vocab,
                              vocab * sizeof(float), Values(head->output),
                              static_cast<size_t>(Stride(head->output)) * sizeof(float),
                              vocab * sizeof(float), static_cast<size_t>(count),
                              cudaMemcpyDeviceToHost, stream_.get()),
            "copying logits");
      logits_count_ += count;
    }
    if (values == nullptr) return;
    stream_.Synchronize();
    const float* from =
        host_logits_.as<float>() + static_cast<size_t>(logits_count_ - asked) * vocab;
    values->insert(values->end(), from, from + static_cast<size_t>(asked) * vocab);
  }

  void Collect(BufferId id, int rows, std::vector<float>& values) {
    const auto width = static_cast<size_t>(Width(id));
    const size_t before = values.size();
    values.resize(before + static_cast<size_t>(rows) * width);
    stream_.Synchronize();
    Check(cudaMemcpy2D(values.data() + before, width * sizeof(float), Values(id),
                       static_cast<size_t>(Stride(id)) * sizeof(float), width * sizeof(float),
                       static_cast<size_t>(rows), cudaMemcpyDeviceToHost),
          "copying activations");
  }

  // ---- ops

  void Launch(const Op& op) {
    rounded_fresh_[static_cast<size_t>(OutputOf(op))] = false;
    std::visit([this](const auto& body) { Launch(body); }, op.body);
  }

  LinearShape Shape(int tokens) const {
    LinearShape shape;
    shape.multiprocessors = multiprocessors_;
    shape.batch_invariant = f32_;
    // Up to four tokens the second half of the activations' bits costs nothing.
    shape.split = f32_          ? ActivationSplit::kThree
                  : tokens <= 4 ? ActivationSplit::kTwo
                                : ActivationSplit::kOne;
    return shape;
  }

  LinearParams Params(BufferId input, const std::optional<RmsNorm>& norm, int tokens) const {
    LinearParams params;
    params.input = Values(input);
    params.input_stride = Stride(input);
    params.tokens = tokens;
    if (norm) {
      params.norm_weight = weights_.vector(norm->weight);
      params.norm_eps = norm->eps;
    }
    return params;
  }

  void Launch(const EmbedOp& op) {
    LaunchEmbed(weights_.matrix(op.embedding), slice_.tokens, slice_.rows, op.scale,
                Values(op.output), Stride(op.output), RoundedOutput(op.output),
                RoundedStride(op.output), stream_.get());
  }

  void Launch(const LinearOp& op) { LaunchLinearOp(op, slice_.rows, nullptr); }

  void LaunchLinearOp(const LinearOp& op, int tokens, const int* input_rows) {
    LinearParams params = Params(op.input, op.norm, tokens);
    params.matrix = weights_.matrix(op.linear.weight);
    params.input_rows = input_rows;
    params.bias = weights_.vector(op.linear.bias);
    params.scale = op.scale;
    params.output = Values(op.output);
    params.output_stride = Stride(op.output);
    params.rounded_output = RoundedOutput(op.output);
    params.rounded_output_stride = RoundedStride(op.output);
    const LinearShape shape = Shape(tokens);
    switch (op.epilogue) {
      case Epilogue::kStore:
        params.epilogue = LinearEpilogue::kStore;
        break;
      case Epilogue::kAdd:
        params.epilogue = LinearEpilogue::kAdd;
        break;
      case Epilogue::kSiluMul:
        params.epilogue = LinearEpilogue::kSiluMul;
        break;
    }
    if (op.norm && op.norm->groups > 1) {
      RmsNormParams norm;
      norm.input = params.input;
      norm.stride = params.input_stride;
      norm.rows = tokens;
      norm.input_rows = input_rows;
      norm.width = Width(op.input);
      norm.groups = Narrow(op.norm->groups);
      norm.weight = params.norm_weight;
      norm.eps = params.norm_eps;
      norm.output = normalized_;
      // The input's rounded copy is not needed: its place serves the normalised rows.
      norm.rounded_output = rounded_[static_cast<size_t>(op.input)];
      rounded_fresh_[static_cast<size_t>(op.input)] = false;
      norm.rounded_stride = RoundedStride(op.input);
      LaunchRmsNorm(norm, stream_.get());
      params.input = normalized_;
      params.input_rows = nullptr;
      params.norm_weight = nullptr;
      params.rounded_input = norm.rounded_output;
    } else if (ReadsRounded(shape, tokens)) {
      params.rounded_input = RoundedInput(op.input);
    }
    params.rounded_input_stride = RoundedStride(op.input);
    LaunchLinear(params, shape, stream_.get());
  }

  void Launch(const Mamba2Op& op) {
    const Mamba2& m = op.mixer;
    Mamba2Params params;
    params.heads = Narrow(m.heads);
    params.head_dim = Narrow(m.head_dim);
    params.d_state = Narrow(m.d_state);
    params.groups = Narrow(m.groups);
    params.d_conv = Narrow(m.d_conv);
    params.dt_min = m.dt_min;
    params.dt_max = m.dt_max;
    params.conv_weight = weights_.vector(m.conv_weight);
    params.conv_bias = weights_.vector(m.conv_bias);
    params.dt_bias = weights_.vector(m.dt_bias);
    params.a = weights_.vector(m.a);
    params.d = weights_.vector(m.d);
    params.conv_offset = op.conv_state < 0 ? 0 : state_.RecurrentOffset(op.conv_state);
    params.ssm_offset = state_.RecurrentOffset(op.ssm_state);
    params.runs = slice_.runs;
    params.run_count = slice_.run_count;
    params.projected = Values(op.input);
    params.projected_stride = Stride(op.input);
    params.output = Values(op.output);
    params.output_stride = Stride(op.output);
    if (slice_.most_tokens == 1) {
      params.rounded_output = RoundedOutput(op.output);
      params.rounded_output_stride = RoundedStride(op.output);
      LaunchMamba2Step(params, stream_.get());
    } else {
      LaunchMamba2Prefill(params, slice_.most_tokens, convolved_, stream_.get());
    }
  }

  void Launch(const AttentionOp& op) {
    const Attention& m = op.mixer;
    AttentionParams params;
    params.heads = Narrow(m.heads);
    params.kv_heads = Narrow(m.kv_heads);
    params.head_dim = Narrow(m.head_dim);
    params.scale = m.scale;
    params.inverse_frequencies = weights_.inverse_frequencies(m);
    params.rotary_dim = m.rope ? Narrow(m.rope->rotary_dim) : 0;
    params.kv_bf16 = state_.kv_bf16();
    params.kv_offset = state_.KvOffset(op.kv);
    params.page_positions = Narrow(program_.layout.page_positions);
    params.runs = slice_.runs;
    params.run_count = slice_.run_count;
    params.rows = slice_.rows;
    params.row_runs = slice_.row_runs;
    params.qkv = Values(op.input);
    params.qkv_stride = Stride(op.input);
    params.output = Values(op.output);
    params.output_stride = Stride(op.output);
    params.rounded_output = RoundedOutput(op.output);
    params.rounded_output_stride = RoundedStride(op.output);
    params.partial = partial_;
    params.arrivals = counters_.as<unsigned>();
    LaunchKvAppend(params, stream_.get());
    LaunchAttention(params, stream_.get());
  }

  void Launch(const RouterOp& op) {
    LinearParams params = Params(op.input, op.norm, slice_.rows);
    params.matrix = weights_.matrix(op.router.weight);
    params.bias = weights_.vector(op.router.bias);
    params.epilogue = LinearEpilogue::kRouter;
    params.output = Values(op.output);
    params.output_stride = Stride(op.output);
    params.top_k = Narrow(op.top_k);
    params.scores = scores_;
    params.arrivals = counters_.as<unsigned>();
    const LinearShape shape = Shape(slice_.rows);
    if (ReadsRounded(shape, slice_.rows)) params.rounded_input = RoundedInput(op.input);
    params.rounded_input_stride = RoundedStride(op.input);
    LaunchLinear(params, shape, stream_.get());
  }

  void Launch(const ExpertGateUpOp& op) {
    ExpertParams params;
    params.linear = Params(op.input, op.norm, slice_.rows);
    params.linear.matrix = weights_.stack(op.gate_up);
    params.linear.epilogue = LinearEpilogue::kSiluMul;
    params.linear.output = Values(op.output);
    params.linear.output_stride = Stride(op.output);
    params.routing = Values(op.routing);
    params.routing_stride = Stride(op.routing);
    params.top_k = Narrow(op.top_k);
    LaunchExpertGateUp(params, Shape(1), stream_.get());
  }

  void Launch(const ExpertDownOp& op) {
    ExpertParams params;
    params.linear = Params(op.input, std::nullopt, slice_.rows);
    params.linear.matrix = weights_.stack(op.down);
    params.linear.epilogue = LinearEpilogue::kAdd;
    params.linear.scale = op.scale;
    params.linear.output = Values(op.output);
    params.linear.output_stride = Stride(op.output);
    params.routing = Values(op.routing);
    params.routing_stride = Stride(op.routing);
    params.top_k = Narrow(op.top_k);
    LaunchExpertDown(params, Shape(1), stream_.get());
  }

  const Program program_;
  const bool f32_;
  Stream stream_;
  DeviceWeights weights_;
  DeviceState state_;
  std::string device_name_;
  int multiprocessors_ = 0;

  DeviceMemory activations_;
  std::vector<float*> buffers_;
  DeviceMemory rounded_memory_;
  std::vector<uint16_t*> rounded_;   // per buffer; null: never read
  std::vector<bool> rounded_fresh_;  // whether it holds the buffer's values
  float* convolved_ = nullptr;
  float* partial_ = nullptr;
  float* scores_ = nullptr;
  float* normalized_ = nullptr;
  DeviceMemory counters_;
  DeviceMemory table_;
  std::array<size_t, 4> table_offsets_{};
  Slice tables_;  // for slices of Forward
  Slice slice_;   // what is being run

  // The slice that is being run.
  std::vector<SequenceRun> runs_;
  std::vector<int> tokens_;
  std::vector<int> row_runs_;
  std::vector<int> logits_rows_;

  // Decoding on the device; one stream at a time.
  DeviceMemory decode_runs_;
  DeviceMemory decode_tokens_;
  DeviceMemory decode_row_runs_;
  DeviceMemory sampling_;
  DeviceMemory history_;
  DeviceMemory best_;
  PinnedMemory chosen_;  // [kOutputSteps][kMostDecodeRows]
  std::map<int, Graph> graphs_;
  bool decoding_ = false;

  PinnedMemory host_logits_;
  int64_t logits_count_ = 0;
  mutable bool logits_ready_ = true;
};

class CudaExecutor::DecodeOnDevice : public DecodeStream {
 public:
  DecodeOnDevice(CudaExecutor& executor, std::span<const DecodeRow> rows)
      : executor_(executor), rows_(Narrow(static_cast<int64_t>(rows.size()))) {
    while (bucket_ < rows_) bucket_ *= 2;
    executor_.PrepareDecode();
    // Every page of the first step is there before the runs are described.
    for (const DecodeRow& row : rows) executor_.state_.Reserve(row.sequence, 1);
    std::vector<SequenceRun> runs;
    std::vector<int> tokens(static_cast<size_t>(bucket_), 0);
    std::vector<SamplingRow> sampling(static_cast<size_t>(bucket_));
    for (int i = 0; i < bucket_; ++i) {
      const auto index = static_cast<size_t>(i);
      if (i >= rows_) {
        runs.push_back(executor_.state_.ScratchRun(i));
        continue;
      }
      const DecodeRow& row = rows[index];
      sequences_.push_back(row.sequence);
      runs.push_back(executor_.state_.Run(row.sequence, i, 1));
      tokens[index] = row.token;
      FillSampling(row, sampling[index]);
      UploadHistory(row, i);
    }
    executor_.Upload(executor_.decode_runs_.data(), runs.data(), runs.size() * sizeof(SequenceRun));
    executor_.Upload(executor_.decode_tokens_.data(), tokens.data(), tokens.size() * sizeof(int));
    executor_.Upload(executor_.sampling_.data(), sampling.data(),
                     sampling.size() * sizeof(SamplingRow));
    graph_ = &executor_.DecodeGraph(bucket_);
    executor_.decoding_ = true;
  }
  ~DecodeOnDevice() override { executor_.decoding_ = false; }

  void Enqueue() override {
    if (enqueued_ - read_ >= kMostUnread) {
      Fail("A decode stream has ", kMostUnread, " unread steps; read one before the next.");
    }
    for (size_t i = 0; i < sequences_.size(); ++i) {
      if (!executor_.state_.Reserve(sequences_[i], 1)) continue;
      const SequenceRun run = executor_.state_.Run(sequences_[i], static_cast<int>(i), 1);
      executor_.Upload(&executor_.decode_runs_.as<SequenceRun>()[i].pages, &run.pages,
                       sizeof(run.pages));
    }
    graph_->Launch(executor_.stream_);
    events_[static_cast<size_t>(enqueued_ % kMostUnread)].Record(executor_.stream_);
    ++enqueued_;
    for (SequenceId sequence : sequences_) executor_.state_.Advance(sequence, 1);
  }

  std::span<const int32_t> Read() override {
    if (read_ == enqueued_) Fail("A decode stream has no step to read.");
    events_[static_cast<size_t>(read_ % kMostUnread)].Synchronize();
    const int* chosen =
        executor_.chosen_.as<int>() + read_ % kOutputSteps * int64_t{kMostDecodeRows};
    ++read_;
    for (int i = 0; i < rows_; ++i) {
      if (chosen[i] < 0) {
        Fail(
            "The model's logits are not finite numbers, so no token can be chosen; the checkpoint "
            "is damaged, or its weights overflow.");
      }
    }
    return {chosen, static_cast<size_t>(rows_)};
  }

  int64_t LaunchesPerStep() const override { return graph_->nodes(); }

 private:
  static void FillSampling(const DecodeRow& row, SamplingRow& out) {
    const SamplingParameters& sampling = row.sampling;
    out = {};
    out.temperature = sampling.temperature;
    out.top_p = sampling.top_p;
    out.min_p = sampling.min_p;
    out.repeat_penalty = sampling.repeat_penalty;
    out.top_k = Narrow(sampling.top_k);
    out.repeat_window = Narrow(std::min<int64_t>(sampling.repeat_window, kHistoryTokens));
    out.active = 1;
    out.seed = sampling.seed;
    out.draws = row.draws;
    out.history_count = row.context.size();
  }

  // The last tokens, where the ring has them.
  void UploadHistory(const DecodeRow& row, int index) {
    if (row.sampling.repeat_penalty == 1) return;
    std::vector<int> ring(kHistoryTokens, 0);
    const size_t count = row.context.size();
    for (size_t i = count - std::min<size_t>(count, kHistoryTokens); i < count; ++i) {
      ring[i % kHistoryTokens] = row.context[i];
    }
    executor_.Upload(executor_.history_.as<int>() + index * int64_t{kHistoryTokens}, ring.data(),
                     ring.size() * sizeof(int));
  }

  CudaExecutor& executor_;
  const int rows_;
  int bucket_ = 1;
  std::vector<SequenceId> sequences_;
  const Graph* graph_ = nullptr;
  std::array<Event, kMostUnread> events_;
  int64_t enqueued_ = 0;
  int64_t read_ = 0;
};

std::unique_ptr<DecodeStream> CudaExecutor::StartDecode(std::span<const DecodeRow> rows) {
  if (decoding_ || rows.empty() || rows.size() > kMostDecodeRows) return nullptr;
  Batch batch;
  for (const DecodeRow& row : rows) {
    const SamplingParameters& sampling = row.sampling;
    if (sampling.top_k > kMaxRankedTopK) return nullptr;
    if (sampling.repeat_penalty != 1 && sampling.repeat_window > kHistoryTokens) return nullptr;
    batch.push_back({row.sequence, std::span(&row.token, 1), LogitsRows::kLast});
  }
  CheckBatch(*this, batch);
  return std::make_unique<DecodeOnDevice>(*this, rows);
}

}  // namespace
}  // namespace cuda

bool CudaAvailable(std::string* reason) {
  if (cuda::DeviceCount() > 0) return true;
  if (reason != nullptr) {
    *reason = "there is no CUDA device, or its driver is missing or older than this build's CUDA";
  }
  return false;
}

std::unique_ptr<Executor> MakeCudaExecutor(Program program, const CudaOptions& options) {
  std::string reason;
  if (!CudaAvailable(&reason)) Fail("Cannot use --device cuda: ", reason, ". Use --device cpu.");
  return std::make_unique<cuda::CudaExecutor>(std::move(program), options);
}

}  // namespace adder
