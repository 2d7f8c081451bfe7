// adder tokenize: text to token ids and back.
#include <memory>

#include "command.h"
#include "core/error.h"
#include "core/file.h"
#include "engine/token_lists.h"
#include "loader/model_path.h"

namespace adder::cli {
namespace {

struct Options {
  std::string model;
  std::optional<std::string> text;
  std::optional<std::string> file;
  std::optional<std::string> decode;
  bool ids = false;
  bool no_special = false;
};

// One line whatever the token holds.
std::string Escape(std::string_view token) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (char c : token) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      text += "\\n";
    } else if (c == '\t') {
      text += "\\t";
    } else if (c == '\\') {
      text += "\\\\";
    } else if (byte < 0x20 || byte == 0x7f) {
      text += Concat("\\x", kHex[byte >> 4], kHex[byte & 15]);
    } else {
      text += c;
    }
  }
  return text;
}

void Run(const Options& options) {
  const auto tokenizer = text::Tokenizer::Load(ResolveModelPath(options.model));
  if (options.decode) {
    const auto ids = ParseTokenList(*options.decode, "--decode");
    for (int32_t id : ids) {
      if (!tokenizer.HasToken(id))
        Fail("--decode: the tokenizer has no token with the id ", id, ".");
    }
    Print(tokenizer.Decode(ids, options.no_special) + "\n");
    return;
  }
  const std::string text = options.text ? *options.text : ReadFile(*options.file);
  std::string output;
  for (int32_t id : tokenizer.Encode(text, !options.no_special)) {
    if (options.ids) {
      output += Concat(output.empty() ? "" : " ", id);
    } else {
      output += Concat(id, "\t", Escape(tokenizer.IdToToken(id)), "\n");
    }
  }
  Print(options.ids ? output + "\n" : output);
}

}  // namespace

void AddTokenizeCommand(CLI::App& program) {
  auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand("tokenize", "Show the tokens of a text");
  AddModelOption(*command, options->model)->required();
  command->add_option("--text", options->text, "The text");
  command->add_option("--file", options->file, "A file with the text; its bytes as they are");
  command->add_option("--decode", options->decode, "Token ids, such as 1,2,3, to turn into text");
  command->add_flag("--ids", options->ids, "Print only the ids, in one line, separated by spaces");
  command->add_flag("--no-special", options->no_special,
                    "Without the special tokens that begin or end a text");
  command->callback([options] {
    if (options->text.has_value() + options->file.has_value() + options->decode.has_value() != 1) {
      throw CLI::RequiredError("tokenize: exactly one of --text, --file and --decode");
    }
    Run(*options);
  });
}

}  // namespace adder::cli
