#include "engine/generation.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/error.h"

namespace adder {
namespace {

using Clock = std::chrono::steady_clock;

// Prompts run in pieces that end at multiples of this many positions, so that a cancellation is
// noticed and a prefix that was run before continues like one that was not.
constexpr size_t kPromptChunk = 512;
// Tokens before the output that the detokeniser sees first: decoders treat the beginning of a text
// (its leading space) and the inside differently. A few tokens tell which it is.
constexpr size_t kDetokenizerContext = 16;
// Steps on their way when a token is waited for: the next one runs while the host handles this one.
// When a text ends, the surplus step has run the text's last token and its choice is dropped.
constexpr int64_t kStepsAhead = 2;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kEndOfSequence:
      return "stop";
    case FinishReason::kStopString:
      return "stop_string";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

GenerationSession::GenerationSession(Executor& executor, const text::Tokenizer* tokenizer)
    : executor_(&executor), tokenizer_(tokenizer), sequence_(executor.CreateSequence()) {}

GenerationSession::GenerationSession(const GenerationSession& other, Forked)
    : executor_(other.executor_),
      tokenizer_(other.tokenizer_),
      sequence_(other.executor_->CopySequence(other.sequence_)),
      tokens_(other.tokens_),
      run_(static_cast<size_t>(other.executor_->Position(sequence_))) {}

GenerationSession::~GenerationSession() {
  stream_.reset();
  executor_->FreeSequence(sequence_);
}

std::unique_ptr<GenerationSession> GenerationSession::Fork() const {
  return std::unique_ptr<GenerationSession>(new GenerationSession(*this, Forked{}));
}

std::vector<StepPart> GenerationSession::ProfileStep() const {
  if (tokens_.empty()) return {};
  DecodeRow row;
  row.sequence = executor_->CopySequence(sequence_);
  row.token = tokens_.back();
  try {
    std::vector<StepPart> parts = executor_->ProfileDecode(std::span(&row, 1));
    executor_->FreeSequence(row.sequence);
    return parts;
  } catch (...) {
    executor_->FreeSequence(row.sequence);
    throw;
  }
}

void GenerationSession::EndDeviceDecode() {
  if (!stream_) return;
  stream_.reset();
  run_ = static_cast<size_t>(executor_->Position(sequence_));
}

void GenerationSession::Reset() {
  EndDeviceDecode();
  executor_->ResetSequence(sequence_);
  tokens_.clear();
  run_ = 0;
  finished_ = true;
}

void GenerationSession::CheckIds(std::span<const int32_t> ids) const {
  const int64_t vocab = executor_->program().plan->vocab;
  for (int32_t id : ids) {
    if (id < 0 || id >= vocab) {
      Fail("The prompt holds the token id ", id, ", but the model's vocabulary has ids 0 to ",
           vocab - 1, ".");
    }
  }
}

bool GenerationSession::Prefill(std::span<const int32_t> tokens, const std::atomic<bool>* cancel) {
  CheckIds(tokens);
  EndDeviceDecode();
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  finished_ = true;
  options_.cancel = cancel;
  return RunPending();
}

void GenerationSession::Begin(std::span<const int32_t> prompt, GenerationOptions options) {
  CheckIds(prompt);
  if (prompt.empty() && tokens_run() == tokens_.size()) {
    Fail("The prompt is empty: there is nothing to continue. Give at least one token.");
  }
  if (options.max_tokens < 1) {
    Fail("The number of tokens to generate is ", options.max_tokens, "; it must be at least 1.");
  }
  if (tokenizer_ == nullptr && !options.stop_strings.empty()) {
    Fail("Stop strings need a tokenizer, and this model has none.");
  }
  Sampler sampler(options.sampling);
  text::StopMatcher stops(options.stop_strings);

  EndDeviceDecode();
  device_declined_ = false;
  tokens_.insert(tokens_.end(), prompt.begin(), prompt.end());
  options_ = std::move(options);
  sampler_.emplace(std::move(sampler));
  stops_.emplace(std::move(stops));
  detokenizer_.reset();
  if (tokenizer_ != nullptr) {
    detokenizer_.emplace(*tokenizer_, /*skip_special=*/true, options_.shown_special);
    const size_t context = std::min(tokens_.size(), kDetokenizerContext);
    for (int32_t id : std::span(tokens_).last(context)) detokenizer_->Push(id);
  }
  result_ = {};
  finished_ = false;
}

bool GenerationSession::RunPending() {
  // An executor that threw (out of memory) may have taken part of the tokens: begin anew from what
  // it says.
  run_ = static_cast<size_t>(executor_->Position(sequence_));
  while (run_ < tokens_.size()) {
    if (Cancelled()) return false;
    const size_t end = std::min(tokens_.size(), (run_ / kPromptChunk + 1) * kPromptChunk);
    const LogitsRows rows = end == tokens_.size() ? LogitsRows::kLast : LogitsRows::kNone;
    executor_->Forward({{sequence_, std::span(tokens_).subspan(run_, end - run_), rows}});
    run_ = end;
  }
  return true;
}

std::optional<int32_t> GenerationSession::NextFromDevice() {
  const int64_t done = static_cast<int64_t>(result_.tokens.size());
  if (!stream_) {
    // It begins with the token that the host chose from the prompt's logits.
    if (device_declined_ || done == 0) return std::nullopt;
    DecodeRow row;
    row.sequence = sequence_;
    row.token = tokens_.back();
    row.sampling = sampler_->parameters();
    row.context = tokens_;
    row.draws = row.sampling.temperature > 0 ? static_cast<uint64_t>(done) : 0;
    stream_ = executor_->StartDecode(std::span(&row, 1));
    unread_ = 0;
    if (!stream_) {
      device_declined_ = true;
      return std::nullopt;
    }
  }
  const DecodeCounters before = stream_->Counters();
  for (; unread_ < std::min(kStepsAhead, options_.max_tokens - done); ++unread_) stream_->Enqueue();
  const int32_t token = stream_->Read().front();
  --unread_;
  if (options_.keep_times) {
    result_.step_times.push_back(HostTimesBetween(before, stream_->Counters()));
  }
  return token;
}

std::optional<GeneratedPiece> GenerationSession::Next() {
  if (finished_) return std::nullopt;
  if (Cancelled()) {
    Finish(FinishReason::kCancelled);
    return std::nullopt;
  }
  const auto start = Clock::now();
  const bool first = result_.tokens.empty();
  GenerationTimings& timings = result_.timings;
  GeneratedPiece piece;
  if (const std::optional<int32_t> chosen = NextFromDevice()) {
    piece.token = *chosen;
    ++timings.decode_steps;
  } else {
    const size_t before = run_;
    const bool complete = RunPending();
    (first ? timings.prompt_tokens : timings.decode_steps) += static_cast<int64_t>(run_ - before);
    if (!complete) {
      timings.prompt_seconds += SecondsSince(start);
      Finish(FinishReason::kCancelled);
      return std::nullopt;
    }
    const double forward = SecondsSince(start);
    const std::span<const float> logits = executor_->Logits(0);  // waits for a device
    const double waited = SecondsSince(start);
    piece.token = sampler_->Sample(logits, tokens_);
    if (options_.keep_times && !first) {
      result_.step_times.push_back({0, forward, SecondsSince(start) - waited, waited - forward});
    }
  }
  (first ? timings.prompt_seconds : timings.decode_seconds) += SecondsSince(start);
  tokens_.push_back(piece.token);
  result_.tokens.push_back(piece.token);

  const auto& end_ids = options_.end_ids;
  if (std::find(end_ids.begin(), end_ids.end(), piece.token) != end_ids.end()) {
    piece.text = Finish(FinishReason::kEndOfSequence);
    return piece;
  }
  if (detokenizer_) piece.text = Show(detokenizer_->Push(piece.token));
  if (stops_->found()) {
    piece.text += Finish(FinishReason::kStopString);
  } else if (static_cast<int64_t>(result_.tokens.size()) >= options_.max_tokens) {
    piece.text += Finish(FinishReason::kLength);
  }
  return piece;
}

std::string GenerationSession::Show(const std::string& text) {
  std::string shown = stops_->Push(text);
  result_.text += shown;
  return shown;
}

std::string GenerationSession::Finish(FinishReason reason) {
  finished_ = true;
  EndDeviceDecode();
  result_.finish = reason;
  std::string rest;
  // The end of the text may complete a stop string; after one, nothing is left to show.
  if (detokenizer_ && !stops_->found()) rest = Show(detokenizer_->Flush());
  if (stops_->found()) {
    result_.finish = FinishReason::kStopString;
    result_.stop_string = options_.stop_strings[*stops_->found()];
  } else {
    const std::string held = stops_->Flush();
    result_.text += held;
    rest += held;
  }
  return rest;
}

const GenerationResult& GenerationSession::Generate(
    std::span<const int32_t> prompt, GenerationOptions options,
    const std::function<void(const GeneratedPiece&)>& on_piece) {
  Begin(prompt, std::move(options));
  std::string shown;
  while (std::optional<GeneratedPiece> piece = Next()) {
    if (on_piece) on_piece(*piece);
    shown += piece->text;
  }
  // A cancellation leaves text that no token brings out.
  if (on_piece && shown.size() < result_.text.size()) {
    on_piece({-1, result_.text.substr(shown.size())});
  }
  return result_;
}

}  // namespace adder
