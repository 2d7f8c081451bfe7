// SentencePiece model files (tokenizer.model): a serialized protobuf message, ModelProto of
// sentencepiece_model.proto. libsentencepiece trusts such files: it follows offsets without
// checking them and ends the process on some inconsistencies. So they are read and checked here
// first, and it gets a message written anew that holds only what was checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace adder::text {

struct SentencePieceFile {
  // The numbers are those of the file format.
  enum class Type { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::kNormal;
  };

  // Throws Error, beginning with `where`, for a file that is damaged or beyond the bounds of what
  // libsentencepiece is given.
  static SentencePieceFile Parse(std::string_view bytes, const std::string& where);

  // The message for libsentencepiece.
  std::string Serialize() const;

  std::vector<Piece> pieces;  // by id
  int64_t model_type = 1;     // 1 unigram, 2 BPE, 3 words, 4 characters
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
  int64_t unknown_id = 0;
  int64_t begin_id = 1;
  int64_t end_id = 2;
  int64_t pad_id = -1;
  std::string unknown_surface = " \xE2\x81\x87 ";  // what an unknown token decodes to
  std::string unknown_piece = "<unk>";
  std::string begin_piece = "<s>";
  std::string end_piece = "</s>";
  std::string pad_piece = "<pad>";
  std::string normalizer_name;
  std::string charsmap;  // see precompiled.h
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

}  // namespace adder::text
