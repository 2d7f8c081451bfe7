#include "cuda/cuda_executor.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "core/error.h"
#include "cuda/call_counts.h"
#include "cuda/cuda_call.h"
#include "cuda/device_decode.h"
#include "cuda/device_memory.h"
#include "cuda/device_state.h"
#include "cuda/device_weights.h"
#include "cuda/kernels/mamba2_deferred.h"
#include "cuda/narrow_ops.h"
#include "cuda/nvtx_range.h"
#include "cuda/supported.h"
#include "cuda/wide_ops.h"
#include "cuda/wide_support.h"
#include "program/batch_checks.h"

namespace adder {
namespace cuda {
namespace {

// Rows of logits computed at a time.
constexpr int kLogitsRows = 64;
// Shapes of wide slices that are remembered.
constexpr size_t kMostWideGraphs = 64;

int Narrow(int64_t value) { return static_cast<int>(value); }

cudaDeviceProp DeviceProperties() {
  cudaDeviceProp properties{};
  int device = 0;
  Check(cudaGetDevice(&device), "cudaGetDevice");
  Check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return properties;
}

// Cuts batches into slices of at most kNarrowSliceRows tokens, or of more where there are enough.
class CudaExecutor : public Executor {
 public:
  CudaExecutor(Program program, const CudaOptions& options)
      : program_((VerifyProgram(program), std::move(program))),
        f32_(options.f32),
        wide_tokens_(options.f32 || !PartWithoutWideKernel(program_).empty()
                         ? std::numeric_limits<int>::max()
                         : options.wide_tokens),
        wide_limit_(
            std::clamp(options.wide_rows / kPieceTokens * kPieceTokens, 512, kWideSliceRows)),
        unpacked_bytes_(options.unpacked_bytes),
        weights_(program_, stream_, options.progress),
        state_(program_, /*kv_bf16=*/!options.f32, stream_),
        device_(DeviceProperties()),
        tiled_weights_(program_, weights_, options.f32 ? 0 : options.unpacked_bytes),
        ops_(program_, weights_, state_, tiled_weights_, stream_, device_.multiProcessorCount, f32_,
             kNarrowSliceRows),
        decode_(
            *this, state_, ops_, tiled_weights_, stream_, [this](const Stream& stream, int rows) {
              return std::make_unique<NarrowOps>(program_, weights_, state_, tiled_weights_, stream,
                                                 device_.multiProcessorCount, f32_, rows);
            }) {
    program_.matrix_bytes = weights_.matrix_bytes();
    AllocateTable();
  }

  std::string Description() const override {
    const DType states = program_.layout.mamba2_dtype;
    return Concat("cuda (", device_.name, f32_ ? ", f32" : "",
                  states == DType::kF32 ? "" : Concat(", ", StateDTypeName(states), " states"),
                  ")");
  }
  const Program& program() const override { return program_; }

  SequenceId CreateSequence() override { return state_.Create(); }
  void FreeSequence(SequenceId sequence) override { state_.Free(sequence); }
  void ResetSequence(SequenceId sequence) override { state_.Reset(sequence); }
  int64_t Position(SequenceId sequence) const override { return state_.Position(sequence); }
  SequenceId CopySequence(SequenceId sequence) override { return state_.Copy(sequence); }
  std::vector<std::byte> ExportSequence(SequenceId sequence) const override {
    ops_.SettleStates(std::span(&sequence, 1));
    return state_.Export(sequence);
  }
  SequenceId ImportSequence(std::span<const std::byte> bytes) override {
    return state_.Import(bytes);
  }
  int64_t WeightBytes() const override { return weights_.bytes(); }
  int64_t StateBytes() const override { return state_.Bytes(); }
  StateTraffic DecodeTraffic() const override {
    return {state_.kv_bf16() ? 2 : 4, state_.DefersAll() ? kDeferredTokens : 1};
  }

  void Forward(const Batch& batch) override {
    Run(batch, static_cast<int>(program_.ops.size()) - 1, nullptr);
  }

  std::vector<float> ForwardUntil(const Batch& batch, int last_op) override {
    CheckLastOp(program_, last_op);
    std::vector<float> values;
    Run(batch, last_op, &values);
    return values;
  }

  std::unique_ptr<DecodeStream> StartDecode(std::span<const DecodeRow> rows) override {
    return decode_.Start(rows);
  }
  std::vector<StepPart> ProfileDecode(std::span<const DecodeRow> rows) override {
    return decode_.Profile(rows);
  }

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
  void AllocateTable() {
    constexpr size_t rows = std::max(kNarrowSliceRows, kWideSliceRows);
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
      const size_t most_rows = static_cast<size_t>(wide ? wide_rows : kNarrowSliceRows);
      runs_.clear();
      tokens_.clear();
      row_runs_.clear();
      logits_rows_.clear();
      advanced_.clear();
      while (next < batch.size() && tokens_.size() < most_rows) {
        const BatchEntry& entry = batch[next];
        const auto size = static_cast<int64_t>(entry.tokens.size());
        const auto row = static_cast<int64_t>(tokens_.size());
        const int64_t take = std::min(size - done, static_cast<int64_t>(most_rows) - row);
        runs_.push_back(state_.Run(entry.sequence, Narrow(row), Narrow(take)));
        advanced_.push_back(entry.sequence);
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
      // Steps may leave states behind in memory; see kernels/mamba2_deferred.h.
      const bool is_step = !wide && std::all_of(runs_.begin(), runs_.end(),
                                                [](const auto& run) { return run.tokens == 1; });
      if (!is_step) ops_.SettleStates(advanced_);
      RunSlice(wide, last_op, values);
      for (size_t i = 0; i < runs_.size(); ++i) {
        state_.Advance(advanced_[i], runs_[i].tokens);
        if (!is_step) state_.MarkSettled(advanced_[i]);
      }
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
      wide_ = std::make_unique<WideOps>(program_, weights_, state_, stream_,
                                        device_.multiProcessorCount, limits);
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
    Upload(table_.as<std::byte>() + offset, values.data(), values.size() * sizeof(T), stream_);
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
      ops_.LaunchHead(*head, count,
                      slice_.wide ? wide_->Values(head->input) : ops_.Values(head->input),
                      slice_.logits_rows + first);
      Check(cudaMemcpy2DAsync(host_logits_.as<float>() + static_cast<size_t>(logits_count_) * vocab,
                              vocab * sizeof(float), ops_.Values(head->output),
                              static_cast<size_t>(ops_.Stride(head->output)) * sizeof(float),
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
    const auto width = static_cast<size_t>(ops_.Width(id));
    const size_t before = values.size();
    values.resize(before + static_cast<size_t>(rows) * width);
    const float* from = slice_.wide ? wide_->WidenedValues(id, rows) : ops_.Values(id);
    stream_.Synchronize();
    ++Calls().synchronizations;
    Check(cudaMemcpy2D(values.data() + before, width * sizeof(float), from,
                       static_cast<size_t>(ops_.Stride(id)) * sizeof(float), width * sizeof(float),
                       static_cast<size_t>(rows), cudaMemcpyDeviceToHost),
          "copying activations");
  }

  void Launch(const Op& op) {
    if (!slice_.wide) return ops_.Launch(op, slice_);
    const NvtxRange range(op.name);
    wide_->Launch(op, slice_);
  }

  Program program_;
  const bool f32_;
  const int wide_tokens_;  // slices of at least so many tokens are wide
  const int wide_limit_;   // tokens of a wide slice at most
  const int64_t unpacked_bytes_;
  Stream stream_;
  DeviceWeights weights_;
  DeviceState state_;
  const cudaDeviceProp device_;
  TiledWeights tiled_weights_;
  NarrowOps ops_;
  DeviceDecode decode_;

  DeviceMemory table_;
  std::array<size_t, 6> table_offsets_{};
  Slice tables_;  // for slices of Forward
  Slice slice_;   // what is being run

  // The slice that is being run.
  std::vector<SequenceRun> runs_;
  std::vector<SequenceId> advanced_;  // whose
  std::vector<int> tokens_;
  std::vector<int> row_runs_;
  std::vector<int> logits_rows_;
  std::vector<Piece> pieces_;
  std::vector<int> first_pieces_;
  std::unique_ptr<WideOps> wide_;                    // made for the first wide slice
  std::map<std::array<int, 3>, Graph> wide_graphs_;  // empty for shapes seen once

  PinnedMemory host_logits_;
  int64_t logits_count_ = 0;
  mutable bool logits_ready_ = true;
};

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
  if (options.f32 && program.layout.mamba2_dtype != DType::kF32) {
    Fail("--compute f32 is exact, and --state-dtype ", StateDTypeName(program.layout.mamba2_dtype),
         " rounds states; leave one of them out.");
  }
  return std::make_unique<cuda::CudaExecutor>(std::move(program), options);
}

}  // namespace adder
