// The interface every backend offers: one loaded model on one device. It only runs: no parsing, no
// policy. Not thread-safe: one thread owns an executor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "program/program.h"
#include "program/sampling_parameters.h"
#include "program/step_profile.h"

namespace adder {

using SequenceId = int32_t;

enum class LogitsRows { kNone, kLast, kAll };

// Tokens appended to one sequence by one Forward call.
struct BatchEntry {
  SequenceId sequence = -1;
  std::span<const int32_t> tokens;  // at least one
  LogitsRows logits = LogitsRows::kLast;
};
using Batch = std::vector<BatchEntry>;

// A sequence whose next tokens the device chooses.
struct DecodeRow {
  SequenceId sequence = -1;
  int32_t token = -1;                // to be run first
  SamplingParameters sampling;       // valid
  std::span<const int32_t> context;  // tokens so far, `token` last; for the repeat penalty
  uint64_t draws = 0;                // random numbers of sampling.seed that were used before
};

// Decoding of several sequences in which each chosen token feeds the next step on the device and
// the host looks on. Choices are those of engine/sampler.h for the same logits when greedy or with
// a top_k of at most 1024; otherwise of the same distribution. While a stream lives, its sequences
// must not be used otherwise; afterwards their states hold every token that was run.
class DecodeStream {
 public:
  virtual ~DecodeStream() = default;
  // Sends one more step on its way; does not wait for it. At most kMostUnread steps may be unread.
  virtual void Enqueue() = 0;
  // The tokens that the oldest unread step chose, one per row, valid until the next call. Waits for
  // that step alone. Throws Error when a row's logits were not finite.
  virtual std::span<const int32_t> Read() = 0;

  // Into how many parts with some of the rows each a step is cut, which run side by side.
  virtual int64_t Lanes() const { return 1; }
  // Kernels and copies that one step runs on the device, of all lanes.
  virtual int64_t LaunchesPerStep() const = 0;
  // The same for each part of a step (step_profile.h); empty when it is not known.
  virtual std::vector<int64_t> LaunchesPerPart() const { return {}; }
  virtual DecodeCounters Counters() const { return {}; }

  static constexpr int kMostUnread = 8;
};

struct StateTraffic {
  int64_t kv_element_bytes = 4;  // of one key or value of an attention layer
  // Steps in which the state of a Mamba-2 layer is written once; each of them reads it.
  int64_t steps_per_mamba2_write = 1;
};

class Executor {
 public:
  virtual ~Executor() = default;

  // "cpu (AVX3_DL, 2 threads)", "reference".
  virtual std::string Description() const = 0;
  virtual const Program& program() const = 0;

  // A new sequence at position 0 with zero state.
  virtual SequenceId CreateSequence() = 0;
  virtual void FreeSequence(SequenceId sequence) = 0;
  // Back to position 0 and zero state.
  virtual void ResetSequence(SequenceId sequence) = 0;
  // Tokens seen so far.
  virtual int64_t Position(SequenceId sequence) const = 0;

  // Runs the batch; each sequence at most once in it. Token ids must be in [0, vocab): Error
  // otherwise, with nothing changed. Afterwards Logits(i) holds the i-th asked-for row, in batch
  // order.
  virtual void Forward(const Batch& batch) = 0;
  // As Forward, but stops after op `last_op` (an index into program().ops) and leaves its output
  // buffer readable: returns [tokens, width] f32. The sequences' states are then half-updated and
  // must be reset. Rows of the head are those whose logits were asked for.
  virtual std::vector<float> ForwardUntil(const Batch& batch, int last_op) = 0;

  // Rows of logits of the last Forward, [vocab] f32 each; valid until the next call.
  virtual int64_t LogitsCount() const = 0;
  virtual std::span<const float> Logits(int64_t row) const = 0;

  // Starts decoding on the device; null when this executor or these parameters need the host to
  // choose tokens (Forward and Logits then serve). Throws Error for a bad batch, as Forward does.
  virtual std::unique_ptr<DecodeStream> StartDecode(std::span<const DecodeRow> rows) {
    static_cast<void>(rows);
    return nullptr;
  }
  // Measures the parts of a decode step of these rows at their positions, within the step as
  // StartDecode runs it. Empty where StartDecode gives null. The sequences must be reset
  // afterwards. Throws Error as StartDecode does.
  virtual std::vector<StepPart> ProfileDecode(std::span<const DecodeRow> rows) {
    static_cast<void>(rows);
    return {};
  }

  // A new sequence that continues from the same state; KV pages are shared until written.
  virtual SequenceId CopySequence(SequenceId sequence) = 0;
  // The whole state as bytes, self-describing, and back. Import into a model with another state
  // layout, or of damaged bytes, is an Error and leaves no new sequence.
  virtual std::vector<std::byte> ExportSequence(SequenceId sequence) const = 0;
  virtual SequenceId ImportSequence(std::span<const std::byte> bytes) = 0;

  // Bytes held by weights (after repacking) and by sequence states.
  virtual int64_t WeightBytes() const = 0;
  virtual int64_t StateBytes() const = 0;
  // What a decode step moves of sequence states.
  virtual StateTraffic DecodeTraffic() const { return {}; }
};

}  // namespace adder
