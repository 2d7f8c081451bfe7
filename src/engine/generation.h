// Generation: a sequence that grows by prompts and by what the model writes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "program/executor.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"

namespace adder {

enum class FinishReason {
  kLength,         // max_tokens were generated
  kEndOfSequence,  // the model ended the text
  kStopString,     // a stop string was written
  kCancelled,
};
// "length", "stop", "stop_string", "cancelled".
const char* FinishReasonName(FinishReason reason);

struct GenerationOptions {
  int64_t max_tokens = 128;
  SamplingParameters sampling;
  std::vector<std::string> stop_strings;  // needs a tokenizer
  std::vector<int32_t> end_ids;           // tokens that end the text; empty: none does
  std::set<int32_t> shown_special;        // special tokens that are part of the text all the same
  // Checked before every step; true ends the generation as kCancelled.
  const std::atomic<bool>* cancel = nullptr;
  bool keep_times = false;  // fill GenerationResult::step_times
};

struct GenerationTimings {
  int64_t prompt_tokens = 0;  // run before the first token was chosen
  double prompt_seconds = 0;
  int64_t decode_steps = 0;  // forward steps of one token each: one fewer than the tokens chosen
  double decode_seconds = 0;

  // 0 where nothing was run.
  double PromptRate() const { return prompt_seconds > 0 ? prompt_tokens / prompt_seconds : 0; }
  double DecodeRate() const { return decode_seconds > 0 ? decode_steps / decode_seconds : 0; }
};

struct GenerationResult {
  std::vector<int32_t> tokens;  // with the one that ended the text, if one did
  std::string text;             // without hidden special tokens, and before the stop string
  FinishReason finish = FinishReason::kLength;
  std::string stop_string;  // the one that was found
  GenerationTimings timings;
  std::vector<HostTimes> step_times;  // of every decode step, where asked for
};

// One token more. Its text may be empty (half a character, or what may become a stop string is held
// back) and may contain what earlier tokens held back.
struct GeneratedPiece {
  int32_t token = -1;
  std::string text;
};

// A sequence of an executor together with its tokens. Not thread-safe, like the executor; sessions
// of one executor may take turns.
class GenerationSession {
 public:
  // `tokenizer` may be null: then no text is produced. Both must outlive the session.
  GenerationSession(Executor& executor, const text::Tokenizer* tokenizer);
  ~GenerationSession();
  GenerationSession(const GenerationSession&) = delete;
  GenerationSession& operator=(const GenerationSession&) = delete;

  // Appends `prompt` to the sequence and prepares to continue it; nothing is run yet. A generation
  // that is under way ends. The prompt may be empty when the sequence is not. Throws Error for an
  // id outside the vocabulary, bad options, or when there is nothing to continue; then nothing has
  // changed.
  void Begin(std::span<const int32_t> prompt, GenerationOptions options);
  // Runs until one more token is chosen. Nothing when the generation has ended. The piece that ends
  // it is returned too; text held back until the end comes with it, or is in result().text.
  std::optional<GeneratedPiece> Next();
  bool finished() const { return finished_; }
  const GenerationResult& result() const { return result_; }

  // Begin, and Next until the end; `on_piece` (may be empty) gets every token and the text as it
  // becomes final. Text that a cancellation frees comes with token -1.
  const GenerationResult& Generate(std::span<const int32_t> prompt, GenerationOptions options,
                                   const std::function<void(const GeneratedPiece&)>& on_piece);

  // Appends `tokens` and runs all that have not been run, so that a Fork now holds their state. A
  // generation that is under way ends. False when `cancel` (may be null) became true on the way;
  // then the rest is run by what comes next. Throws Error as Begin does for bad ids.
  bool Prefill(std::span<const int32_t> tokens, const std::atomic<bool>* cancel);

  // All tokens: prompts and output. The last may not have been run yet.
  std::span<const int32_t> tokens() const { return tokens_; }
  // How many of them have been run.
  size_t tokens_run() const { return static_cast<size_t>(executor_->Position(sequence_)); }
  // Forgets everything.
  void Reset();
  // A session in the same state. Its generation, if one is under way here, is not copied.
  std::unique_ptr<GenerationSession> Fork() const;

  // The parts of a decode step that would follow, measured on a copy; empty when the host runs them
  // or nothing has been run. No generation may be under way.
  std::vector<StepPart> ProfileStep() const;

  Executor& executor() const { return *executor_; }

 private:
  struct Forked {};
  void CheckIds(std::span<const int32_t> ids) const;
  GenerationSession(const GenerationSession& other, Forked);
  bool Cancelled() const { return options_.cancel != nullptr && options_.cancel->load(); }
  // Runs all tokens that have not been run; false when cancelled on the way.
  bool RunPending();
  // The next token when the device chooses; starts that when it can. Nothing: the host has to.
  std::optional<int32_t> NextFromDevice();
  // Afterwards run_ says what the sequence's state holds.
  void EndDeviceDecode();
  std::string Finish(FinishReason reason);
  // Passes text through the stop strings and records what may be shown.
  std::string Show(const std::string& text);

  Executor* executor_;
  const text::Tokenizer* tokenizer_;
  SequenceId sequence_;
  std::vector<int32_t> tokens_;
  size_t run_ = 0;  // tokens_[0, run_) are in the sequence's state

  GenerationOptions options_;
  std::optional<Sampler> sampler_;
  std::optional<text::StreamingDetokenizer> detokenizer_;
  std::optional<text::StopMatcher> stops_;
  GenerationResult result_;
  bool finished_ = true;

  // Decoding in which the device chooses tokens; null while the host does.
  std::unique_ptr<DecodeStream> stream_;
  bool device_declined_ = false;  // this generation needs the host
  int64_t unread_ = 0;            // steps of stream_
};

}  // namespace adder
