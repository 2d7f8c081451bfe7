// tokenizer_batch DIR: a tokenizer as a filter, for tests that compare it with others on many
// texts.
//
// Each line of standard input is a JSON string, a text. Each line of output is the array [ids, ids
// without special tokens, decode of the latter, decode of the former without special tokens], or a
// string with the error. For a line with an array of ids it is [decode, decode without special
// tokens].
#include <iostream>
#include <string>

#include "core/error.h"
#include "core/json.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace {

using adder::Json;
using adder::text::Tokenizer;

// The decoded text; streaming has to give the same.
std::string Decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip_special) {
  std::string text = tokenizer.Decode(ids, skip_special);
  adder::text::StreamingDetokenizer detokenizer(tokenizer, skip_special);
  std::string streamed;
  for (int32_t id : ids) streamed += detokenizer.Push(id);
  streamed += detokenizer.Flush();
  if (streamed != text) adder::Fail("Streaming gives ", streamed, " where decoding gives ", text);
  return text;
}

Json Answer(const Tokenizer& tokenizer, const std::string& line) {
  const Json input = adder::ParseJson(line, "line");
  if (input.is_array()) {
    const auto ids = input.get<std::vector<int32_t>>();
    return Json::array({Decode(tokenizer, ids, false), Decode(tokenizer, ids, true)});
  }
  const auto text = input.get<std::string>();
  const std::vector<int32_t> ids = tokenizer.Encode(text, true);
  const std::vector<int32_t> plain_ids = tokenizer.Encode(text, false);
  return Json::array(
      {ids, plain_ids, Decode(tokenizer, plain_ids, false), Decode(tokenizer, ids, true)});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: tokenizer_batch DIR <texts >answers\n";
    return 2;
  }
  try {
    const Tokenizer tokenizer = Tokenizer::Load(argv[1]);
    for (std::string line; std::getline(std::cin, line);) {
      Json answer;
      try {
        answer = Answer(tokenizer, line);
      } catch (const adder::Error& error) {
        answer = error.what();
      }
      std::cout << answer.dump() << '\n';
    }
  } catch (const adder::Error& error) {
    std::cerr << "tokenizer_batch: " << error.what() << '\n';
    return 1;
  }
  return std::cout.flush() ? 0 : 1;
}
