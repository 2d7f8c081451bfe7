#include "checkpoint/checkpoint_writer.h"

#include <cstdio>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"

namespace adder {
namespace {

int64_t SpecBytes(const TensorSpec& tensor) {
  const std::optional<int64_t> count = ElementCount(tensor.shape);
  if (!count || *count > (int64_t{1} << 56)) {
    Fail("The tensor ", tensor.name, " has the absurd shape ", ShapeString(tensor.shape), ".");
  }
  return *count * static_cast<int64_t>(DTypeSize(tensor.dtype));
}

}  // namespace

CheckpointWriter::CheckpointWriter(std::filesystem::path directory, std::vector<TensorSpec> tensors,
                                   std::map<std::string, std::string> metadata,
                                   int64_t max_shard_bytes)
    : directory_(std::move(directory)), metadata_(std::move(metadata)), shards_(1) {
  for (TensorSpec& tensor : tensors) {
    const int64_t bytes = SpecBytes(tensor);
    if (!shards_.back().tensors.empty() && shards_.back().bytes + bytes > max_shard_bytes) {
      shards_.emplace_back();
    }
    shards_.back().bytes += bytes;
    shards_.back().tensors.push_back(std::move(tensor));
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, shards_.size());
    shards_[i].name = shards_.size() == 1 ? "model.safetensors" : name;
  }
  OpenShard();
}

void CheckpointWriter::OpenShard() {
  remaining_ = shards_[current_].bytes;
  writer_ = std::make_unique<SafetensorsWriter>(directory_ / shards_[current_].name,
                                                shards_[current_].tensors, metadata_);
}

void CheckpointWriter::Append(std::span<const std::byte> bytes) {
  if (remaining_ == 0 && !bytes.empty() && current_ + 1 < shards_.size()) {
    writer_->Finish();
    ++current_;
    OpenShard();
  }
  writer_->Append(bytes);
  remaining_ -= static_cast<int64_t>(bytes.size());
}

void CheckpointWriter::Finish() {
  writer_->Finish();
  if (current_ + 1 != shards_.size()) {
    Fail("Cannot write ", (directory_ / shards_[current_ + 1].name).string(),
         ": its tensors are missing.");
  }
  if (shards_.size() == 1) return;
  Json index = Json::object();
  Json map = Json::object();
  int64_t total = 0;
  for (const Shard& shard : shards_) {
    total += shard.bytes;
    for (const TensorSpec& tensor : shard.tensors) map[tensor.name] = shard.name;
  }
  index["metadata"]["total_size"] = total;
  index["weight_map"] = std::move(map);
  WriteFile(directory_ / "model.safetensors.index.json", index.dump(2) + "\n");
}

void CreateCheckpointDirectory(const std::filesystem::path& directory) {
  std::error_code error;
  if (std::filesystem::exists(directory, error)) {
    if (!std::filesystem::is_directory(directory, error)) {
      Fail(directory.string(), " exists and is not a directory.");
    }
    if (!std::filesystem::is_empty(directory, error)) {
      Fail(directory.string(), " is not empty; choose a new directory for the checkpoint.");
    }
    return;
  }
  if (!std::filesystem::create_directories(directory, error)) {
    Fail("Cannot create ", directory.string(), ": ", error.message(), ".");
  }
}

}  // namespace adder
