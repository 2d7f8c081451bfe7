// Small tokenizers for tests and fuzzers, built in code.
#pragma once

#include <string>

#include "core/json.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace adder::text {

// A byte-level BPE tokenizer.json: ids 0 to 255 are the bytes in order, then "he" 256, "ll" 257,
// "hell" 258, "hello" 259, " hello" 260, "aa" 261, "aaaa" 262; "<|end|>" 263 is special, "tool" 264
// added and not special, "<|start|>" 265 special and put before every text.
inline Json SmallByteLevelTokenizer() {
  Json vocab = Json::object();
  const auto add = [&](std::string_view bytes) {
    std::string token;
    AppendByteCharacters(bytes, token);
    vocab[token] = vocab.size();
    return token;
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  Json merges = Json::array();
  const auto merge = [&](std::string_view left, std::string_view right) {
    std::string left_token;
    std::string right_token;
    AppendByteCharacters(left, left_token);
    AppendByteCharacters(right, right_token);
    merges.push_back(Json::array({left_token, right_token}));
    add(std::string(left) + std::string(right));
  };
  merge("h", "e");
  merge("l", "l");
  merge("he", "ll");
  merge("hell", "o");
  merge(" ", "hello");
  merge("a", "a");
  merge("aa", "aa");
  const auto added = [](int id, std::string_view content, bool special) {
    return Json{{"id", id}, {"content", content}, {"normalized", false}, {"special", special}};
  };
  const Json start = {{"SpecialToken", {{"id", "<|start|>"}, {"type_id", 0}}}};
  const Json sequence = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  return {
      {"added_tokens", Json::array({added(263, "<|end|>", true), added(264, "tool", false),
                                    added(265, "<|start|>", true)})},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single", Json::array({start, sequence})},
        {"special_tokens", {{"<|start|>", {{"id", "<|start|>"}, {"ids", Json::array({265})}}}}}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

}  // namespace adder::text
