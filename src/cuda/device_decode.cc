#include "cuda/device_decode.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>

#include "core/error.h"
#include "cuda/call_counts.h"
#include "cuda/cuda_call.h"
#include "cuda/kernels/few_linear.h"
#include "cuda/kernels/sample.h"
#include "cuda/nvtx_range.h"
#include "cuda/part_timing.h"
#include "program/batch_checks.h"

namespace adder::cuda {
namespace {

// From so many sequences on, matrices are unpacked.
constexpr int kLeastTiledRows = 16;

// Lanes of a step, as measured (an H200, granite-4.0-h-350m and mamba2-1.3b): two are faster by 4
// to 26% for the sizes named here, slower by 4 to 7% for 32 sequences, whose halves are too many
// for the matrix kernel of few tokens.
int LanesIn(int bucket) {
  const int half = bucket / 2;
  return (half >= 4 && half <= kMostFewTokens) || half >= 32 ? 2 : 1;
}

}  // namespace

bool DeviceDecode::CanDecode(std::span<const DecodeRow> rows) const {
  if (decoding_ || rows.empty() || rows.size() > kMostDecodeRows) return false;
  Batch batch;
  for (const DecodeRow& row : rows) {
    const SamplingParameters& sampling = row.sampling;
    if (sampling.top_k > kMaxRankedTopK) return false;
    if (sampling.repeat_penalty != 1 && sampling.repeat_window > kHistoryTokens) return false;
    batch.push_back({row.sequence, std::span(&row.token, 1), LogitsRows::kLast});
  }
  CheckBatch(executor_, batch);
  return true;
}

void DeviceDecode::Prepare(int bucket) {
  if (bucket >= kLeastTiledRows) tiled_weights_.Make(stream_);
  if (LanesIn(bucket) > 1 && second_ops_ == nullptr) {
    second_ops_ = make_ops_(second_stream_, kMostDecodeRows / 2);
    second_stream_.Synchronize();
  }
  if (runs_.bytes() > 0) return;
  constexpr size_t kRows = kMostDecodeRows;
  runs_ = DeviceMemory(kRows * sizeof(SequenceRun));
  tokens_ = DeviceMemory(kRows * sizeof(int));
  row_runs_ = DeviceMemory(kRows * sizeof(int));
  sampling_ = DeviceMemory(kRows * sizeof(SamplingRow));
  history_ = DeviceMemory(kRows * kHistoryTokens * sizeof(int));
  chosen_ = PinnedMemory(kOutputSteps * kRows * sizeof(int));
  std::vector<int> identity(kRows);
  std::iota(identity.begin(), identity.end(), 0);
  Upload(row_runs_.data(), identity.data(), kRows * sizeof(int), stream_);
}

std::vector<DeviceDecode::Lane> DeviceDecode::LanesOf(int bucket) {
  if (LanesIn(bucket) == 1) return {{ops_, stream_, 0, bucket}};
  const int half = bucket / 2;
  second_ops_->PlaceBuffer(Head().input, ops_, half);
  return {{ops_, stream_, 0, half}, {*second_ops_, second_stream_, half, half}};
}

int DeviceDecode::RowInLane(int bucket, int index) { return index % (bucket / LanesIn(bucket)); }

// A step has a part for every op, and one that chooses tokens.
int DeviceDecode::StepParts() const { return static_cast<int>(executor_.program().ops.size()) + 1; }

const LinearOp& DeviceDecode::Head() const {
  return std::get<LinearOp>(executor_.program().ops.back().body);
}

// The part from which on lanes are one: the head, if it takes all rows of the step in less time
// than half of them twice.
int DeviceDecode::FirstJoinedPart(int bucket) const {
  const bool joins = LanesIn(bucket) > 1 && bucket / 2 > kMostFewTokens;
  return joins ? StepParts() - 2 : StepParts();
}

// Puts parts [first, last) of a step of `bucket` rows on the stream. Calls `launched` after each
// part of each lane.
void DeviceDecode::LaunchStepParts(int bucket, int first, int last,
                                   const std::function<void(int part)>& launched) {
  const std::vector<Lane> lanes = LanesOf(bucket);
  const int joined = std::clamp(FirstJoinedPart(bucket), first, last);
  const auto launch = [&](const Lane& lane, int begin, int end) {
    for (int part = begin; part < end; ++part) {
      LaunchPart(lane, part);
      if (launched) launched(part);
    }
  };
  if (lanes.size() > 1) {
    fork_.Record(stream_);
    fork_.HoldUp(second_stream_);
  }
  for (const Lane& lane : lanes) launch(lane, first, joined);
  if (lanes.size() > 1) {
    join_.Record(second_stream_);
    join_.HoldUp(stream_);
  }
  launch({ops_, stream_, 0, bucket}, joined, last);
}

void DeviceDecode::LaunchPart(const Lane& lane, int part) {
  if (part + 1 == StepParts()) return LaunchChoice(lane);
  Slice slice;
  slice.runs = runs_.as<const SequenceRun>() + lane.first;
  slice.tokens = tokens_.as<const int>() + lane.first;
  slice.row_runs = row_runs_.as<const int>();
  slice.run_count = lane.rows;
  slice.rows = lane.rows;
  slice.most_tokens = 1;
  lane.ops.LaunchOfStep(static_cast<size_t>(part), slice);
}

void DeviceDecode::LaunchChoice(const Lane& lane) {
  const NvtxRange range("sample");
  SampleParams params;
  const Program& program = executor_.program();
  params.logits = lane.ops.Values(program.logits);
  params.stride = lane.ops.Stride(program.logits);
  params.vocab = static_cast<int>(program.plan->vocab);
  params.rows = lane.rows;
  params.sampling = sampling_.as<SamplingRow>() + lane.first;
  params.history = history_.as<int>() + int64_t{lane.first} * kHistoryTokens;
  params.runs = runs_.as<SequenceRun>() + lane.first;
  params.tokens = tokens_.as<int>() + lane.first;
  params.output = chosen_.as<int>() + lane.first;
  params.output_stride = kMostDecodeRows;
  LaunchSample(params, lane.stream.get());
}

// The graph of one step of `bucket` rows: all ops, then sampling.
const DeviceDecode::StepGraph& DeviceDecode::GraphOf(int bucket) {
  StepGraph& step = graphs_[bucket];
  if (step.graph) return step;
  step.launches.assign(static_cast<size_t>(StepParts()), 0);
  int64_t before = 0;
  step.graph = Graph::Capture(stream_, [&] {
    LaunchStepParts(bucket, 0, StepParts(), [&](int part) {
      const int64_t nodes = CapturedNodes(stream_);
      step.launches[static_cast<size_t>(part)] += nodes - before;
      before = nodes;
    });
  });
  return step;
}

class DeviceDecode::Steps : public DecodeStream {
 public:
  Steps(DeviceDecode& decode, std::span<const DecodeRow> rows)
      : decode_(decode), rows_(static_cast<int>(rows.size())) {
    while (bucket_ < rows_) bucket_ *= 2;
    decode_.Prepare(bucket_);
    for (const DecodeRow& row : rows) {
      sequences_.push_back(row.sequence);
      // Every page of the first step is there before the runs are described.
      decode_.state_.Reserve(row.sequence, 1);
    }
    Describe(rows);
    step_ = &decode_.GraphOf(bucket_);
    decode_.decoding_ = true;
  }
  ~Steps() override { decode_.decoding_ = false; }

  void Enqueue() override {
    if (enqueued_ - read_ >= kMostUnread) {
      Fail("A decode stream has ", kMostUnread, " unread steps; read one before the next.");
    }
    const CallCounts calls = Calls();
    const auto start = Clock::now();
    for (size_t i = 0; i < sequences_.size(); ++i) {
      if (!decode_.state_.Reserve(sequences_[i], 1)) continue;
      const SequenceRun run = decode_.state_.Run(sequences_[i], static_cast<int>(i), 1);
      Upload(&decode_.runs_.as<SequenceRun>()[i].pages, &run.pages, sizeof(run.pages),
             decode_.stream_);
    }
    const auto prepared = Clock::now();
    step_->graph.Launch(decode_.stream_);
    events_[static_cast<size_t>(enqueued_ % kMostUnread)].Record(decode_.stream_);
    ++enqueued_;
    for (SequenceId sequence : sequences_) decode_.state_.Advance(sequence, 1);
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
    const int* chosen = decode_.chosen_.as<int>() + read_ % kOutputSteps * int64_t{kMostDecodeRows};
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

  int64_t Lanes() const override { return LanesIn(bucket_); }
  int64_t LaunchesPerStep() const override { return step_->graph.nodes(); }
  std::vector<int64_t> LaunchesPerPart() const override { return step_->launches; }
  DecodeCounters Counters() const override { return counters_; }

  // Instead of steps: afterwards the sequences must be reset.
  std::vector<StepPart> Profile(std::span<const DecodeRow> rows) {
    for (SequenceId sequence : sequences_) decode_.state_.Reserve(sequence, kTimedSteps);
    return TimeParts(
        decode_.stream_, decode_.StepParts(),
        [this](int first, int last) { decode_.LaunchStepParts(bucket_, first, last, nullptr); },
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
        runs.push_back(decode_.state_.ScratchRun(RowInLane(bucket_, i)));
        continue;
      }
      const DecodeRow& row = rows[index];
      runs.push_back(decode_.state_.Run(row.sequence, RowInLane(bucket_, i), 1));
      tokens[index] = row.token;
      FillSampling(row, sampling[index]);
      UploadHistory(row, i);
    }
    Upload(decode_.runs_.data(), runs.data(), runs.size() * sizeof(SequenceRun), decode_.stream_);
    Upload(decode_.tokens_.data(), tokens.data(), tokens.size() * sizeof(int), decode_.stream_);
    Upload(decode_.sampling_.data(), sampling.data(), sampling.size() * sizeof(SamplingRow),
           decode_.stream_);
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
    out.top_k = static_cast<int>(sampling.top_k);
    out.repeat_window = static_cast<int>(std::min<int64_t>(sampling.repeat_window, kHistoryTokens));
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
    Upload(decode_.history_.as<int>() + index * int64_t{kHistoryTokens}, ring.data(),
           ring.size() * sizeof(int), decode_.stream_);
  }

  DeviceDecode& decode_;
  const int rows_;
  int bucket_ = 1;
  std::vector<SequenceId> sequences_;
  const StepGraph* step_ = nullptr;
  std::array<Event, kMostUnread> events_;
  int64_t enqueued_ = 0;
  int64_t read_ = 0;
  DecodeCounters counters_;
};

std::unique_ptr<DecodeStream> DeviceDecode::Start(std::span<const DecodeRow> rows) {
  if (!CanDecode(rows)) return nullptr;
  return std::make_unique<Steps>(*this, rows);
}

std::vector<StepPart> DeviceDecode::Profile(std::span<const DecodeRow> rows) {
  if (!CanDecode(rows)) return {};
  return Steps(*this, rows).Profile(rows);
}

}  // namespace adder::cuda
