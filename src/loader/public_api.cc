// The public interface of include/adder/adder.h, over the engine.
#include <stdexcept>
#include <utility>

#include "adder/adder.h"
#include "core/error.h"
#include "engine/generation.h"
#include "loader/loader.h"

namespace adder {
namespace {

const text::Tokenizer& TokenizerOf(const LoadedModel& model) {
  if (!model.tokenizer) {
    Fail(model.directory.string(), " has no tokenizer; give token ids instead of text.");
  }
  return *model.tokenizer;
}

}  // namespace

struct Model::Impl {
  LoadedModel loaded;
};

struct Session::Impl {
  std::shared_ptr<Model::Impl> model;  // outlives the generation, which uses its executor
  std::unique_ptr<GenerationSession> generation;
  // Which Generate call the session is at; a stream of an earlier one has ended.
  uint64_t turn = 0;
};

struct TokenStream::Impl {
  std::weak_ptr<Session::Impl> session;
  uint64_t turn = 0;
  StopReason stop_reason = StopReason::kNotFinished;
};

Model::Model(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Model Model::Load(const std::string& name, const ModelOptions& options) {
  LoadOptions load;
  load.threads = options.threads;
  load.compute = options.exact ? Compute::kF32 : Compute::kFast;
  auto impl = std::make_shared<Impl>();
  impl->loaded = LoadModel(name, load);
  return Model(std::move(impl));
}

std::string Model::family() const { return impl_->loaded.plan->family; }
int64_t Model::vocab_size() const { return impl_->loaded.plan->vocab; }

std::vector<int32_t> Model::Encode(std::string_view text) const {
  return TokenizerOf(impl_->loaded).Encode(text, /*add_special_tokens=*/true);
}

std::string Model::Decode(const std::vector<int32_t>& ids) const {
  return TokenizerOf(impl_->loaded).Decode(ids, /*skip_special=*/true);
}

Session Model::NewSession() {
  auto session = std::make_shared<Session::Impl>();
  session->model = impl_;
  session->generation =
      std::make_unique<GenerationSession>(*impl_->loaded.executor, impl_->loaded.tokenizer.get());
  return Session(std::move(session));
}

Session::Session(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

TokenStream Session::Generate(std::string_view prompt, const GenerateOptions& options) {
  const bool first = impl_->generation->tokens().empty();
  return Generate(TokenizerOf(impl_->model->loaded).Encode(prompt, /*add_special_tokens=*/first),
                  options);
}

TokenStream Session::Generate(const std::vector<int32_t>& prompt, const GenerateOptions& options) {
  const LoadedModel& model = impl_->model->loaded;
  GenerationOptions generation;
  generation.max_tokens = options.max_tokens;
  generation.sampling = model.sampling;
  SamplingParameters& sampling = generation.sampling;
  sampling.temperature = options.temperature.value_or(sampling.temperature);
  sampling.top_k = options.top_k.value_or(sampling.top_k);
  sampling.top_p = options.top_p.value_or(sampling.top_p);
  sampling.min_p = options.min_p.value_or(sampling.min_p);
  sampling.repeat_penalty = options.repeat_penalty.value_or(sampling.repeat_penalty);
  sampling.seed = options.seed;
  generation.stop_strings = options.stop;
  if (!options.ignore_end) generation.end_ids = model.end_ids;
  impl_->generation->Begin(prompt, std::move(generation));

  auto stream = std::make_shared<TokenStream::Impl>();
  stream->session = impl_;
  stream->turn = ++impl_->turn;
  return TokenStream(std::move(stream));
}

std::vector<int32_t> Session::tokens() const {
  const auto tokens = impl_->generation->tokens();
  return {tokens.begin(), tokens.end()};
}

void Session::Reset() {
  impl_->generation->Reset();
  ++impl_->turn;
}

Session Session::Fork() const {
  auto fork = std::make_shared<Impl>();
  fork->model = impl_->model;
  fork->generation = impl_->generation->Fork();
  return Session(std::move(fork));
}

TokenStream::TokenStream(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

std::optional<Token> TokenStream::Next() {
  const std::shared_ptr<Session::Impl> session = impl_->session.lock();
  if (!session || session->turn != impl_->turn) return std::nullopt;
  GenerationSession& generation = *session->generation;
  std::optional<GeneratedPiece> piece = generation.Next();
  if (!piece) return std::nullopt;
  if (generation.finished()) {
    switch (generation.result().finish) {
      case FinishReason::kEndOfSequence:
        impl_->stop_reason = StopReason::kEndOfText;
        break;
      case FinishReason::kStopString:
        impl_->stop_reason = StopReason::kStopText;
        break;
      case FinishReason::kLength:
      case FinishReason::kCancelled:  // these streams have no cancel flag
        impl_->stop_reason = StopReason::kMaxTokens;
        break;
    }
  }
  return Token{piece->token, std::move(piece->text)};
}

StopReason TokenStream::stop_reason() const { return impl_->stop_reason; }

}  // namespace adder
