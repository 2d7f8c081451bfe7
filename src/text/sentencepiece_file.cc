#include "text/sentencepiece_file.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "core/error.h"
#include "text/precompiled.h"
#include "text/utf8.h"
#include "text/vocabulary.h"

namespace adder::text {
namespace {

// Bounds the time that one place of a text can take. Real pieces are below 100 bytes.
constexpr size_t kMaxPieceBytes = 1024;
constexpr int kMaxSurfaceBytes = 64;

// Field numbers of sentencepiece_model.proto.
enum ModelField { kPieces = 1, kTrainer = 2, kNormalizer = 3, kDenormalizer = 5 };
enum PieceField { kText = 1, kScore = 2, kType = 3 };
enum TrainerField {
  kModelType = 3,
  kWhitespaceAsSuffix = 24,
  kByteFallback = 35,
  kUnknownId = 40,
  kBeginId = 41,
  kEndId = 42,
  kPadId = 43,
  kUnknownSurface = 44,
  kUnknownPiece = 45,
  kBeginPiece = 46,
  kEndPiece = 47,
  kPadPiece = 48,
};
enum NormalizerField {
  kName = 1,
  kCharsmap = 2,
  kAddDummyPrefix = 3,
  kRemoveExtraWhitespaces = 4,
  kEscapeWhitespaces = 5,
};
enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// One field of a message.
struct Field {
  uint64_t number = 0;
  uint64_t wire_type = 0;
  uint64_t integer = 0;    // of a varint or a fixed-size value
  std::string_view bytes;  // of a string, bytes or message
};

class MessageReader {
 public:
  MessageReader(std::string_view bytes, const std::string& where) : rest_(bytes), where_(where) {}

  bool Next(Field& field) {
    if (rest_.empty()) return false;
    const uint64_t tag = Varint();
    field = {tag >> 3, tag & 7, 0, {}};
    switch (field.wire_type) {
      case kVarint:
        field.integer = Varint();
        break;
      case kFixed64:
        field.integer = Fixed(8);
        break;
      case kFixed32:
        field.integer = Fixed(4);
        break;
      case kBytes: {
        const uint64_t size = Varint();
        if (size > rest_.size()) Damaged();
        field.bytes = Take(size);
        break;
      }
      default:
        Damaged();
    }
    return true;
  }

 private:
  [[noreturn]] void Damaged() const {
    Fail(where_, " is no SentencePiece model, or it is damaged or cut off.");
  }
  std::string_view Take(size_t size) {
    if (size > rest_.size()) Damaged();
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  uint64_t Fixed(size_t size) {
    uint64_t value = 0;
    for (size_t shift = 0; char byte : Take(size)) {
      value |= uint64_t{static_cast<uint8_t>(byte)} << shift;
      shift += 8;
    }
    return value;
  }
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(Take(1)[0]);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    Damaged();
  }

  std::string_view rest_;
  const std::string& where_;
};

class MessageWriter {
 public:
  void Integer(uint64_t field, int64_t value) {
    Varint(field << 3 | kVarint);
    Varint(static_cast<uint64_t>(value));
  }
  void Float(uint64_t field, float value) {
    Varint(field << 3 | kFixed32);
    const auto bits = std::bit_cast<uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) bytes_ += static_cast<char>(bits >> shift & 0xFF);
  }
  void Bytes(uint64_t field, std::string_view value) {
    Varint(field << 3 | kBytes);
    Varint(value.size());
    bytes_ += value;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(0x80 | (value & 0x7F));
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

SentencePieceFile::Piece ReadPiece(std::string_view bytes, const std::string& where) {
  SentencePieceFile::Piece piece;
  MessageReader reader(bytes, where);
  for (Field field; reader.Next(field);) {
    if (field.number == kText) piece.text = field.bytes;
    if (field.number == kScore) {
      piece.score = std::bit_cast<float>(static_cast<uint32_t>(field.integer));
    }
    if (field.number == kType) {
      if (field.integer < 1 || field.integer > 6) Fail(where, ": the type is unknown.");
      piece.type = static_cast<SentencePieceFile::Type>(field.integer);
    }
  }
  if (piece.text.empty() || piece.text.size() > kMaxPieceBytes || !IsValidUtf8(piece.text) ||
      piece.text.find('\0') != std::string::npos) {
    Fail(where, ": the text should be UTF-8 of 1 to ", kMaxPieceBytes, " bytes without zeros.");
  }
  if (!std::isfinite(piece.score)) Fail(where, ": the score is not finite.");
  return piece;
}

void ReadTrainer(std::string_view bytes, const std::string& where, SentencePieceFile& file) {
  MessageReader reader(bytes, where);
  for (Field field; reader.Next(field);) {
    const auto integer = static_cast<int64_t>(field.integer);
    const auto name = [&](std::string& text) {
      if (field.bytes.size() > kMaxSurfaceBytes || !IsValidUtf8(field.bytes)) {
        Fail(where, ": a name is no UTF-8 or longer than ", kMaxSurfaceBytes, " bytes.");
      }
      text = field.bytes;
    };
    switch (field.number) {
      case kModelType:
        if (integer < 1 || integer > 4) Fail(where, ": model_type is unknown.");
        file.model_type = integer;
        break;
      case kWhitespaceAsSuffix:
        file.whitespace_as_suffix = integer != 0;
        break;
      case kByteFallback:
        file.byte_fallback = integer != 0;
        break;
      case kUnknownId:
        file.unknown_id = integer;
        break;
      case kBeginId:
        file.begin_id = integer;
        break;
      case kEndId:
        file.end_id = integer;
        break;
      case kPadId:
        file.pad_id = integer;
        break;
      case kUnknownSurface:
        name(file.unknown_surface);
        break;
      case kUnknownPiece:
        name(file.unknown_piece);
        break;
      case kBeginPiece:
        name(file.begin_piece);
        break;
      case kEndPiece:
        name(file.end_piece);
        break;
      case kPadPiece:
        name(file.pad_piece);
        break;
      default:
        break;  // how the model was trained
    }
  }
}

void ReadNormalizer(std::string_view bytes, const std::string& where, SentencePieceFile& file) {
  MessageReader reader(bytes, where);
  for (Field field; reader.Next(field);) {
    if (field.number == kName) file.normalizer_name = field.bytes;
    if (field.number == kCharsmap) file.charsmap = field.bytes;
    if (field.number == kAddDummyPrefix) file.add_dummy_prefix = field.integer != 0;
    if (field.number == kRemoveExtraWhitespaces) file.remove_extra_whitespaces = field.integer != 0;
    if (field.number == kEscapeWhitespaces) file.escape_whitespaces = field.integer != 0;
  }
  if (!file.charsmap.empty()) CheckCharsmap(file.charsmap, where + ".precompiled_charsmap");
}

void CheckPieces(const SentencePieceFile& file, const std::string& where) {
  std::unordered_set<std::string_view> seen;
  int unknown = 0;
  for (const SentencePieceFile::Piece& piece : file.pieces) {
    if (!seen.insert(piece.text).second) {
      Fail(where, ": the piece \"", piece.text, "\" is there twice.");
    }
    if (piece.type == SentencePieceFile::Type::kUnknown) ++unknown;
  }
  if (unknown != 1) Fail(where, ": one piece should have the type UNKNOWN, ", unknown, " have.");
  for (int64_t id : {file.unknown_id, file.begin_id, file.end_id, file.pad_id}) {
    if (id >= static_cast<int64_t>(file.pieces.size()) || id < -1) {
      Fail(where, ": trainer_spec names the id ", id, ", and there are ", file.pieces.size(),
           " pieces.");
    }
  }
}

}  // namespace

SentencePieceFile SentencePieceFile::Parse(std::string_view bytes, const std::string& where) {
  SentencePieceFile file;
  MessageReader reader(bytes, where);
  for (Field field; reader.Next(field);) {
    if (field.number == kPieces) {
      if (file.pieces.size() >= static_cast<size_t>(Vocabulary::kMaxIds)) {
        Fail(where, ": there are too many pieces.");
      }
      file.pieces.push_back(ReadPiece(field.bytes, Concat(where, ": piece ", file.pieces.size())));
    } else if (field.number == kTrainer) {
      ReadTrainer(field.bytes, where + ": trainer_spec", file);
    } else if (field.number == kNormalizer) {
      ReadNormalizer(field.bytes, where + ": normalizer_spec", file);
    } else if (field.number == kDenormalizer) {
      SentencePieceFile denormalizer;
      ReadNormalizer(field.bytes, where + ": denormalizer_spec", denormalizer);
      if (!denormalizer.charsmap.empty()) Fail(where, ": a denormalizer_spec is not supported.");
    }
  }
  CheckPieces(file, where);
  return file;
}

std::string SentencePieceFile::Serialize() const {
  MessageWriter model;
  for (const Piece& piece : pieces) {
    MessageWriter writer;
    writer.Bytes(kText, piece.text);
    writer.Float(kScore, piece.score);
    writer.Integer(kType, static_cast<int64_t>(piece.type));
    model.Bytes(kPieces, writer.bytes());
  }
  MessageWriter trainer;
  trainer.Integer(kModelType, model_type);
  trainer.Integer(kWhitespaceAsSuffix, whitespace_as_suffix);
  trainer.Integer(kByteFallback, byte_fallback);
  trainer.Integer(kUnknownId, unknown_id);
  trainer.Integer(kBeginId, begin_id);
  trainer.Integer(kEndId, end_id);
  trainer.Integer(kPadId, pad_id);
  trainer.Bytes(kUnknownSurface, unknown_surface);
  trainer.Bytes(kUnknownPiece, unknown_piece);
  trainer.Bytes(kBeginPiece, begin_piece);
  trainer.Bytes(kEndPiece, end_piece);
  trainer.Bytes(kPadPiece, pad_piece);
  model.Bytes(kTrainer, trainer.bytes());
  MessageWriter normalizer;
  normalizer.Bytes(kName, normalizer_name);
  normalizer.Bytes(kCharsmap, charsmap);
  normalizer.Integer(kAddDummyPrefix, add_dummy_prefix);
  normalizer.Integer(kRemoveExtraWhitespaces, remove_extra_whitespaces);
  normalizer.Integer(kEscapeWhitespaces, escape_whitespaces);
  model.Bytes(kNormalizer, normalizer.bytes());
  return model.bytes();
}

}  // namespace adder::text
