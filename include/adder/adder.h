// adder's public interface: load a model, open sessions, read streams of tokens.
//
//   adder::Model model = adder::Model::Load("models/demo");
//   adder::Session session = model.NewSession();
//   adder::TokenStream stream = session.Generate("Once upon a time", {.max_tokens = 100});
//   while (std::optional<adder::Token> token = stream.Next()) std::cout << token->text;
//
// Everything that fails throws std::runtime_error with a sentence that says what and where; running
// out of memory throws std::bad_alloc. A model and all its sessions belong to one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace adder {

struct ModelOptions {
  int threads = 0;     // 0: one per core
  bool exact = false;  // f32 activations instead of the faster int8 ones
};

// A sampling value that is not given is taken from the model's generation_config.json.
struct GenerateOptions {
  int64_t max_tokens = 128;
  std::optional<float> temperature;  // 0: always the most likely token
  std::optional<int64_t> top_k;      // 0: all
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repeat_penalty;
  uint64_t seed = 0;              // the same seed gives the same tokens
  std::vector<std::string> stop;  // texts that end the generation and are not part of it
  bool ignore_end = false;        // go on after the model's end-of-text token
};

// `text` is whole characters, final, and often empty: half a character, and what may become a stop
// text, is held back and comes with a later token.
struct Token {
  int32_t id = -1;
  std::string text;
};

enum class StopReason { kNotFinished, kMaxTokens, kEndOfText, kStopText };

class Session;

class Model {
 public:
  // `name` is a directory, or owner/name in the local Hugging Face cache.
  static Model Load(const std::string& name, const ModelOptions& options = {});
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  // The model_type, e.g. "granitemoehybrid".
  std::string family() const;
  int64_t vocab_size() const;
  // Ids of a text with the special tokens that begin a sequence, and the text of ids. Throw when
  // the model has no tokenizer.
  std::vector<int32_t> Encode(std::string_view text) const;
  std::string Decode(const std::vector<int32_t>& ids) const;

  // A new, empty sequence. Sessions keep the model alive.
  Session NewSession();

 private:
  friend class Session;
  struct Impl;
  explicit Model(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

// The tokens of one generation, as they come. Ends with its session, with the session's next
// Generate or Reset, or when Next returns nothing.
class TokenStream {
 public:
  // Computes the next token; nothing at the end.
  std::optional<Token> Next();
  StopReason stop_reason() const;

 private:
  friend class Session;
  struct Impl;
  explicit TokenStream(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

// A sequence: what was given and generated so far, and the model's state after it.
class Session {
 public:
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  // Appends a text, or token ids, to the sequence and continues it.
  TokenStream Generate(std::string_view prompt, const GenerateOptions& options = {});
  TokenStream Generate(const std::vector<int32_t>& prompt, const GenerateOptions& options = {});
  // All tokens of the sequence.
  std::vector<int32_t> tokens() const;
  // Back to an empty sequence.
  void Reset();
  // A second session that continues from the same state on its own.
  Session Fork() const;

 private:
  friend class Model;
  friend class TokenStream;
  struct Impl;
  explicit Session(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace adder
