#include "cuda/cuda_executor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>

#include "core/error.h"
#include "cuda/call_counts.h"
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
#include "cuda/nvtx_range.h"
#include "cuda/op_params.h"
#include "cuda/part_timing.h"
#include "cuda/supported.h"
#include "cuda/wide_ops.h"
#include "program/batch_checks.h"

namespace adder {
namespace cuda {
namespace {

// A batch is run in slices of at most so many tokens, or kWideSliceRows where there are enough.
constexpr int kSliceRows = 512;
// Rows of logits computed at a time.
constexpr int kLogitsRows = 64;
// Largest batch of single tokens that runs as one graph.
constexpr int kMostDecodeRows = 256;
// Shapes of wide slices that are remembered.
constexpr size_t kMostWideGraphs = 64;

int Narrow(int64_t value) { return static_cast<int>(value); }

class CudaExecutor : public Executor {
 public:
  CudaExecutor(Program program, const CudaOptions& options)
      : program_((VerifyProgram(program), std::move(program))),
        f32_(options.f32),
        wide_tokens_(options.f32 || !WideOps::Support(program_) ? std::numeric_limits<int>::max()
                                                                : options.wide_tokens),
        wide_limit_(
            std::clamp(options.wide_rows / kPieceTokens * kPieceTokens, 512, kWideSliceRows)),
        unpacked_bytes_(options.unpacked_bytes),
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
  int64_t KvElementBytes() const override { return state_.kv_bf16() ? 2 : 4; }

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
  std::vector<StepPart> ProfileDecode(std::span<const DecodeRow> rows) override;

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

  int Width(BufferId id) const { return BufferWidth(program_, id); }
  int Stride(BufferId id) const { return BufferStride(program_, id); }
  float* Values(BufferId id) const {
    if (slice_.wide && id != program_.logits) return wide_->Values(id);
    return buffers_[static_cast<size_t>(id)];
  }

  // Buffers that matrices read also exist rounded to bf16, in rows of 16-byte multiples: matrix
  // kernels of many tokens read those. Kernels that can write both; after others a kernel rounds.
  int RoundedStride(BufferId id) const { return (Width(id) + 7) / 8 * 8; }

  // Where an op writes the rounded copy of its output; null: nobody will read it.
  uint16_t* RoundedOutput(BufferId id) {
    uint16_t* rounded = rounded_[static_cast<size_t>(id)];
    if (rounded == nullptr || !ReadsRounded(Shape(), slice_.rows)) return nullptr;
    rounded_fresh_[static_cast<size_t>(id)] = true;
    return rounded;
  }
  // The rounded copy of `rows` rows: of input_rows, or of the first.
  const uint16_t* RoundedInput(BufferId id, int rows, const int* input_rows) {
    const auto index = static_cast<size_t>(id);
    if (!rounded_fresh_[index] || input_rows != nullptr) {
      LaunchRound(Values(id), Stride(id), input_rows, rows, Width(id), rounded_[index],
                  RoundedStride(id), stream_.get());
      rounded_fresh_[index] = input_rows == nullptr;
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

    constexpr size_t rows = std::max(kSliceRows, kWideSliceRows);
    constexpr size_t kRowEnd = rows * (sizeof(SequenceRun) + 12);
    constexpr size_t kPieces = WideSlicePieces(kWideSliceRows);
    constexpr size_t kPieceEnd = kRowEnd + kPieces * sizeof(Piece);
    table_offsets_ = {0,
                      rows * sizeof(SequenceRun),
                      rows * (sizeof(SequenceRun) + 4),
                      rows * (sizeof(SequenceRun) + 8),
                      kRowEnd,
                      kPieceEnd};
    table_ = DeviceMemory(kPieceEnd + (kPieces + 1) * sizeof(int));
    tables_.runs = table_.as<const SequenceRun>();
    tables_.tokens = reinterpret_cast<const int*>(table_.as<std::byte>() + table_offsets_[1]);
    tables_.row_runs = reinterpret_cast<const int*>(table_.as<std::byte>() + table_offsets_[2]);
    tables_.logits_rows = reinterpret_cast<const int*>(table_.as<std::byte>() + table_offsets_[3]);
    tables_.pieces = reinterpret_cast<const Piece*>(table_.as<std::byte>() + table_offsets_[4]);
    tables_.first_pieces = reinterpret_cast<const int*>(table_.as<std::byte>() + table_offsets_[5]);
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

  // Throws Error for a bad batch.
  bool CanDecode(std::span<const DecodeRow> rows) const {
    if (decoding_ || rows.empty() || rows.size() > kMostDecodeRows) return false;
    Batch batch;
    for (const DecodeRow& row : rows) {
      const SamplingParameters& sampling = row.sampling;
      if (sampling.top_k > kMaxRankedTopK) return false;
      if (sampling.repeat_penalty != 1 && sampling.repeat_window > kHistoryTokens) return false;
      batch.push_back({row.sequence, std::span(&row.token, 1), LogitsRows::kLast});
    }
    CheckBatch(*this, batch);
    return true;
  }

  void PrepareDecode() {
    if (decode_runs_.bytes() > 0) return;
    constexpr size_t kRows = kMostDecodeRows;
    decode_runs_ = DeviceMemory(kRows * sizeof(SequenceRun));
    decode_tokens_ = DeviceMemory(kRows * sizeof(int));
    decode_row_runs_ = DeviceMemory(kRows * sizeof(int));
    sampling_ = DeviceMemory(kRows * sizeof(SamplingRow));
    history_ = DeviceMemory(kRows * kHistoryTokens * sizeof(int));
    chosen_ = PinnedMemory(kOutputSteps * kRows * sizeof(int));
    std::vector<int> identity(kRows);
    std::iota(identity.begin(), identity.end(), 0);
    Upload(decode_row_runs_.data(), identity.data(), kRows * sizeof(int));
  }

  // Small enough that the driver takes the bytes at once: the host may change them afterwards.
  void Upload(void* to, const void* from, size_t bytes) {
    if (bytes == 0) return;
    ++Calls().copies;
    Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_.get()),
          "copying a batch's table");
  }

  // A step has a part for every op, and one that chooses tokens.
  int StepParts() const { return static_cast<int>(program_.ops.size()) + 1; }

  // Puts parts [first, last) of a step of `bucket` rows on the stream.
  void LaunchStepParts(int bucket, int first, int last) {
    slice_ = {};
    slice_.runs = decode_runs_.as<const SequenceRun>();
    slice_.tokens = decode_tokens_.as<const int>();
    slice_.row_runs = decode_row_runs_.as<const int>();
    slice_.run_count = bucket;
    slice_.rows = bucket;
    slice_.most_tokens = 1;
    const int ops = StepParts() - 1;
    for (int i = first; i < std::min(last, ops); ++i) {
      const auto index = static_cast<size_t>(i);
      if (index > 0 && SharedExpertOf(index - 1) != nullptr) continue;
      if (JoinsGates(index)) continue;
      shared_expert_ = SharedExpertOf(index);
      joined_router_ = index > 0 && JoinsGates(index - 1)
                           ? std::get_if<RouterOp>(&program_.ops[index - 1].body)
                           : nullptr;
      Launch(program_.ops[index]);
    }
    shared_expert_ = nullptr;
    joined_router_ = nullptr;
    if (last > ops) LaunchChoice(bucket);
  }

  // Of a step: the op behind a launch of experts that multiplies the same activations by an expert
  // which every token takes, or adds its product to the same buffer. One launch does both, and the
  // second op has none of its own.
  const LinearOp* SharedExpertOf(size_t index) const {
    constexpr int kMostRows = 8;
    if (f32_ || slice_.rows > kMostRows || index + 1 >= program_.ops.size()) return nullptr;
    const auto* linear = std::get_if<LinearOp>(&program_.ops[index + 1].body);
    if (linear == nullptr || linear->linear.bias != kNoId) return nullptr;
    const PackedMatrix& shared = weights_.matrix(linear->linear.weight);
    const Op& op = program_.ops[index];
    if (const auto* gate_up = std::get_if<ExpertGateUpOp>(&op.body)) {
      const bool same = linear->epilogue == Epilogue::kGated && linear->input == gate_up->input &&
                        linear->norm == gate_up->norm;
      return same && CanShareLaunch(weights_.stack(gate_up->gate_up), shared) ? linear : nullptr;
    }
    if (const auto* down = std::get_if<ExpertDownOp>(&op.body)) {
      const bool same = linear->epilogue == Epilogue::kAdd && linear->output == down->output &&
                        linear->scale == down->scale && !linear->norm;
      return same && CanShareLaunch(weights_.stack(down->down), shared) ? linear : nullptr;
    }
    return nullptr;
  }
  // Of a step: whether the op is a router whose choice the launch of the op behind it makes.
  bool JoinsGates(size_t index) const {
    if (f32_ || index + 1 >= program_.ops.size()) return false;
    const auto* router = std::get_if<RouterOp>(&program_.ops[index].body);
    const auto* gate_up = std::get_if<ExpertGateUpOp>(&program_.ops[index + 1].body);
    return router != nullptr && gate_up != nullptr && router->output == gate_up->routing &&
           router->input == gate_up->input && router->norm == gate_up->norm &&
           CanRoute(weights_.stack(gate_up->gate_up), weights_.matrix(router->router.weight),
                    slice_.rows);
  }
  void ShareLaunch(ExpertParams& params) {
    if (shared_expert_ == nullptr) return;
    params.shared = weights_.matrix(shared_expert_->linear.weight);
    params.shared_input = Values(shared_expert_->input);
    params.shared_input_stride = Stride(shared_expert_->input);
    params.shared_output = Values(shared_expert_->output);
    params.shared_output_stride = Stride(shared_expert_->output);
  }

  void LaunchChoice(int bucket) {
    const NvtxRange range("sample");
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
    LaunchSample(params, stream_.get());
  }

  struct StepGraph {
    Graph graph;
    std::vector<int64_t> launches;  // of each part
  };

  // The graph of one step of `bucket` rows: all ops, then sampling.
  const StepGraph& DecodeGraph(int bucket) {
    StepGraph& step = graphs_[bucket];
    if (step.graph) return step;
    step.launches.clear();
    step.graph = Graph::Capture(stream_, [&] {
      int64_t before = 0;
      for (int part = 0; part < StepParts(); ++part) {
        LaunchStepParts(bucket, part, part + 1);
        const int64_t nodes = CapturedNodes(stream_);
        step.launches.push_back(nodes - before);
        before = nodes;
      }
    });
    return step;
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
      const int wide_rows = WideRows(batch, next, done);
      const bool wide = wide_rows >= wide_tokens_;
      const size_t most_rows = static_cast<size_t>(wide ? wide_rows : kSliceRows);
      runs_.clear();
      tokens_.clear();
      row_runs_.clear();
      logits_rows_.clear();
      std::vector<std::pair<SequenceId, int>> advanced;
      while (next < batch.size() && tokens_.size() < most_rows) {
        const BatchEntry& entry = batch[next];
        const auto size = static_cast<int64_t>(entry.tokens.size());
        const auto row = static_cast<int64_t>(tokens_.size());
        const int64_t take = std::min(size - done, static_cast<int64_t>(most_rows) - row);
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
      RunSlice(wide, last_op, values);
      for (const auto& [sequence, count] : advanced) state_.Advance(sequence, count);
    }
  }

  // How many tokens a wide slice from token `done` of batch[next] on would have; 0 when there can
  // be none.
  int WideRows(const Batch& batch, size_t next, int64_t done) {
    const int most = Narrow(CountRows(batch, next, done, wide_limit_));
    if (most < wide_tokens_ || !PrepareWide()) return 0;
    return Narrow(CountRows(batch, next, done, wide_->rows()));
  }

  // The same for slices of at most so many tokens.
  static int64_t CountRows(const Batch& batch, size_t next, int64_t done, int most) {
    const int most_pieces = WideSlicePieces(most);
    int64_t rows = 0;
    int64_t pieces = 0;
    for (; next < batch.size() && rows < most && pieces < most_pieces; ++next) {
      const int64_t take = std::min({static_cast<int64_t>(batch[next].tokens.size()) - done,
                                     most - rows, (most_pieces - pieces) * kPieceTokens});
      rows += take;
      pieces += (take + kPieceTokens - 1) / kPieceTokens;
      done = 0;
    }
    return rows;
  }

  // Whether wide slices can be run; makes what they need.
  bool PrepareWide() {
    if (wide_ == nullptr && DenseProducts::Available()) {
      size_t free = 0;
      size_t all = 0;
      Check(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
      WideLimits limits;
      limits.rows = wide_limit_;
      limits.buffer_bytes = free / 2;
      limits.kept_bytes = unpacked_bytes_ < 0 ? free / 8 : static_cast<size_t>(unpacked_bytes_);
      wide_ =
          std::make_unique<WideOps>(program_, weights_, state_, stream_, multiprocessors_, limits);
    }
    return wide_ != nullptr && wide_->rows() > 0;
  }

  void CutPieces() {
    pieces_.clear();
    first_pieces_.clear();
    for (size_t r = 0; r < runs_.size(); ++r) {
      first_pieces_.push_back(static_cast<int>(pieces_.size()));
      for (int done = 0; done < runs_[r].tokens; done += kPieceTokens) {
        pieces_.push_back({runs_[r].row + done, std::min(kPieceTokens, runs_[r].tokens - done),
                           static_cast<int>(r), 0});
      }
    }
    first_pieces_.push_back(static_cast<int>(pieces_.size()));
    UploadTable(table_offsets_[4], pieces_);
    UploadTable(table_offsets_[5], first_pieces_);
  }

  template <class T>
  void UploadTable(size_t offset, const std::vector<T>& values) {
    Upload(table_.as<std::byte>() + offset, values.data(), values.size() * sizeof(T));
  }

  void RunSlice(bool wide, int last_op, std::vector<float>* values) {
    UploadTable(table_offsets_[0], runs_);
    UploadTable(table_offsets_[1], tokens_);
    UploadTable(table_offsets_[2], row_runs_);
    UploadTable(table_offsets_[3], logits_rows_);
    if (wide) CutPieces();
    slice_ = tables_;
    slice_.wide = wide;
    slice_.piece_count = wide ? static_cast<int>(pieces_.size()) : 0;
    slice_.rows = Narrow(static_cast<int64_t>(tokens_.size()));
    slice_.run_count = Narrow(static_cast<int64_t>(runs_.size()));
    for (const SequenceRun& run : runs_) {
      slice_.most_tokens = std::max(slice_.most_tokens, run.tokens);
    }
    LaunchBefore(last_op);
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

  // All ops before `last_op`. What a whole wide slice launches depends only on a few numbers, and
  // chunks of prompts tend to have the same again: from the second time on they run as a graph.
  void LaunchBefore(int last_op) {
    const auto launch = [&] {
      for (int i = 0; i < last_op; ++i) Launch(program_.ops[static_cast<size_t>(i)]);
    };
    if (!slice_.wide || last_op + 1 < static_cast<int>(program_.ops.size())) return launch();
    if (wide_graphs_.size() >= kMostWideGraphs) wide_graphs_.clear();
    const auto [known, first] = wide_graphs_.try_emplace(
        std::array<int, 3>{slice_.rows, slice_.run_count, slice_.piece_count});
    if (first) return launch();
    Graph& graph = known->second;
    if (!graph) graph = Graph::Capture(stream_, launch);
    graph.Launch(stream_);
  }

  void Collect(BufferId id, int rows, std::vector<float>& values) {
    const auto width = static_cast<size_t>(Width(id));
    const size_t before = values.size();
    values.resize(before + static_cast<size_t>(rows) * width);
    const float* from = slice_.wide ? wide_->WidenedValues(id, rows) : Values(id);
    stream_.Synchronize();
    ++Calls().synchronizations;
    Check(cudaMemcpy2D(values.data() + before, width * sizeof(float), from,
                       static_cast<size_t>(Stride(id)) * sizeof(float), width * sizeof(float),
                       static_cast<size_t>(rows), cudaMemcpyDeviceToHost),
          "copying activations");
  }

  // ---- ops

  void Launch(const Op& op) {
    const NvtxRange range(op.name);
    rounded_fresh_[static_cast<size_t>(OutputOf(op))] = false;
    if (slice_.wide) return wide_->Launch(op, slice_);
    // CheckSupported has refused programs with other ops.
    std::visit(
        [this](const auto& body) {
          if constexpr (kHasKernels<std::decay_t<decltype(body)>>) Launch(body);
        },
        op.body);
  }

  LinearShape Shape() const {
    LinearShape shape;
    shape.multiprocessors = multiprocessors_;
    shape.batch_invariant = f32_;
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
    const LinearShape shape = Shape();
    switch (op.epilogue) {
      case Epilogue::kStore:
        params.epilogue = LinearEpilogue::kStore;
        break;
      case Epilogue::kAdd:
        params.epilogue = LinearEpilogue::kAdd;
        break;
      case Epilogue::kGated:
        params.epilogue = LinearEpilogue::kSiluMul;
        break;
      case Epilogue::kActivate:
        Fail("The CUDA backend has no kernel for an MLP without a gate.");  // see CheckSupported
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
      params.rounded_input = RoundedInput(op.input, tokens, input_rows);
    }
    params.rounded_input_stride = RoundedStride(op.input);
    LaunchLinear(params, shape, stream_.get());
  }

  void Launch(const Mamba2Op& op) {
    Mamba2Params params = MixerParams(op, weights_, state_, slice_);
    params.projected = Values(op.input);
    params.projected_stride = Stride(op.input);
    params.output = Values(op.output);
    params.output_stride = Stride(op.output);
    if (slice_.most_tokens == 1) {
      params.rounded_output = RoundedOutput(op.output);
      params.rounded_output_stride = RoundedStride(op.output);
      params.multiprocessors = multiprocessors_;
      LaunchMamba2Step(params, stream_.get());
    } else {
      LaunchMamba2Prefill(params, slice_.most_tokens, convolved_, stream_.get());
    }
  }

  void Launch(const AttentionOp& op) {
    AttentionParams params = MixerParams(op, program_, weights_, state_, slice_);
    params.qkv = Values(op.input);
    params.qkv_stride = Stride(op.input);
    params.output = Values(op.output);
    params.output_stride = Stride(op.output);
    params.rounded_output = RoundedOutput(op.output);
    params.rounded_output_stride = RoundedStride(op.output);
    params.partial = partial_;
    params.arrivals = counters_.as<unsigned>();
    if (slice_.most_tokens == 1) {
      LaunchAttentionStep(params, stream_.get());
    } else {
      LaunchKvAppend(params, stream_.get());
      LaunchAttention(params, stream_.get());
    }
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
    const LinearShape shape = Shape();
    if (ReadsRounded(shape, slice_.rows))
      params.rounded_input = RoundedInput(op.input, slice_.rows, nullptr);
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
    ShareLaunch(params);
    if (joined_router_ != nullptr) {
      params.router = weights_.matrix(joined_router_->router.weight);
      params.router_bias = weights_.vector(joined_router_->router.bias);
      params.chosen = Values(op.routing);
    }
    LaunchExpertGateUp(params, Shape(), stream_.get());
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
    ShareLaunch(params);
    LaunchExpertDown(params, Shape(), stream_.get());
  }

  const Program program_;
  const bool f32_;
  const int wide_tokens_;  // slices of at least so many tokens are wide
  const int wide_limit_;   // tokens of a wide slice at most
  const int64_t unpacked_bytes_;
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
  std::array<size_t, 6> table_offsets_{};
  Slice tables_;                             // for slices of Forward
  Slice slice_;                              // what is being run
  const LinearOp* shared_expert_ = nullptr;  // that the op being launched takes in
  const RouterOp* joined_router_ = nullptr;  // likewise

  // The slice that is being run.
  std::vector<SequenceRun> runs_;
  std::vector<int> tokens_;
  std::vector<int> row_runs_;
  std::vector<int> logits_rows_;
  std::vector<Piece> pieces_;
  std::vector<int> first_pieces_;
  std::unique_ptr<WideOps> wide_;                    // made for the first wide slice
  std::map<std::array<int, 3>, Graph> wide_graphs_;  // empty for shapes seen once

  // Decoding on the device; one stream at a time.
  DeviceMemory decode_runs_;
  DeviceMemory decode_tokens_;
  DeviceMemory decode_row_runs_;
  DeviceMemory sampling_;
  DeviceMemory history_;
  PinnedMemory chosen_;  // [kOutputSteps][kMostDecodeRows]
  std::map<int, StepGraph> graphs_;
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
    for (const DecodeRow& row : rows) {
      sequences_.push_back(row.sequence);
      // Every page of the first step is there before the runs are described.
      executor_.state_.Reserve(row.sequence, 1);
    }
    Describe(rows);
    step_ = &executor_.DecodeGraph(bucket_);
    executor_.decoding_ = true;
  }
  ~DecodeOnDevice() override { executor_.decoding_ = false; }

  void Enqueue() override {
    if (enqueued_ - read_ >= kMostUnread) {
      Fail("A decode stream has ", kMostUnread, " unread steps; read one before the next.");
    }
    const CallCounts calls = Calls();
    const auto start = Clock::now();
    for (size_t i = 0; i < sequences_.size(); ++i) {
      if (!executor_.state_.Reserve(sequences_[i], 1)) continue;
      const SequenceRun run = executor_.state_.Run(sequences_[i], static_cast<int>(i), 1);
      executor_.Upload(&executor_.decode_runs_.as<SequenceRun>()[i].pages, &run.pages,
                       sizeof(run.pages));
    }
    const auto prepared = Clock::now();
    step_->graph.Launch(executor_.stream_);
    events_[static_cast<size_t>(enqueued_ % kMostUnread)].Record(executor_.stream_);
    ++enqueued_;
    for (SequenceId sequence : sequences_) executor_.state_.Advance(sequence, 1);
    ++counters_.steps;
    counters_.prepare_seconds += Seconds(prepared - start);
    counters_.launch_seconds += Seconds(Clock::now() - prepared);
    Count(calls);
  }

  std::span<const int32_t> Read() override {
    if (read_ == enqueued_) Fail("A decode stream has no step to read.");
    const CallCounts calls = Calls();
    const auto start = Clock::now();
    events_[static_cast<size_t>(read_ % kMostUnread)].Synchronize();
    counters_.wait_seconds += Seconds(Clock::now() - start);
    Count(calls);
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

  int64_t LaunchesPerStep() const override { return step_->graph.nodes(); }
  std::vector<int64_t> LaunchesPerPart() const override { return step_->launches; }
  DecodeCounters Counters() const override { return counters_; }

  // Instead of steps: afterwards the sequences must be reset.
  std::vector<StepPart> Profile(std::span<const DecodeRow> rows) {
    for (SequenceId sequence : sequences_) executor_.state_.Reserve(sequence, kTimedSteps);
    return TimeParts(
        executor_.stream_, executor_.StepParts(),
        [this](int first, int last) { executor_.LaunchStepParts(bucket_, first, last); },
        [&] { Describe(rows); });
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double Seconds(Clock::duration time) {
    return std::chrono::duration<double>(time).count();
  }

  // Tells the device where the sequences are, what they read next and how to choose.
  void Describe(std::span<const DecodeRow> rows) {
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
      runs.push_back(executor_.state_.Run(row.sequence, i, 1));
      tokens[index] = row.token;
      FillSampling(row, sampling[index]);
      UploadHistory(row, i);
    }
    executor_.Upload(executor_.decode_runs_.data(), runs.data(), runs.size() * sizeof(SequenceRun));
    executor_.Upload(executor_.decode_tokens_.data(), tokens.data(), tokens.size() * sizeof(int));
    executor_.Upload(executor_.sampling_.data(), sampling.data(),
                     sampling.size() * sizeof(SamplingRow));
  }

  // Adds what was called since `before`.
  void Count(const CallCounts& before) {
    const CallCounts& now = Calls();
    counters_.synchronizations += now.synchronizations - before.synchronizations;
    counters_.output_waits += now.event_waits - before.event_waits;
    counters_.allocations += now.allocations - before.allocations;
    counters_.copies += now.copies - before.copies;
  }

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
  const StepGraph* step_ = nullptr;
  std::array<Event, kMostUnread> events_;
  int64_t enqueued_ = 0;
  int64_t read_ = 0;
  DecodeCounters counters_;
};

std::unique_ptr<DecodeStream> CudaExecutor::StartDecode(std::span<const DecodeRow> rows) {
  if (!CanDecode(rows)) return nullptr;
  return std::make_unique<DecodeOnDevice>(*this, rows);
}

std::vector<StepPart> CudaExecutor::ProfileDecode(std::span<const DecodeRow> rows) {
  if (!CanDecode(rows)) return {};
  return DecodeOnDevice(*this, rows).Profile(rows);
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
  cuda::CheckSupported(program);
  return std::make_unique<cuda::CudaExecutor>(std::move(program), options);
}

}  // namespace adder
