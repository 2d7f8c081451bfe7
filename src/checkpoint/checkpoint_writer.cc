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

NewCheckpointDirectory::NewCheckpointDirectory(std::filesystem::path directory,
                                               const std::vector<TensorSpec>& tensors)
    : directory_(std::move(directory)) {
  std::error_code error;
  const std::string name = directory_.string();
  if (std::filesystem::exists(directory_, error)) {
    if (!std::filesystem::is_directory(directory_, error)) {
      Fail(name, " exists and is not a directory.");
    }
    if (!std::filesystem::is_empty(directory_, error)) {
      Fail(name, " is not empty; choose a new directory for the checkpoint.");
    }
  } else if (std::filesystem::create_directories(directory_, error)) {
    made_ = true;
  } else {
    Fail("Cannot create \"", name, "\": ", error.message(), ".");
  }
  uintmax_t bytes = 0;
  for (const TensorSpec& tensor : tensors) bytes += static_cast<uintmax_t>(SpecBytes(tensor));
  const std::filesystem::space_info space = std::filesystem::space(directory_, error);
  if (error || bytes <= space.available) return;
  Remove();
  constexpr uintmax_t kMiB = uintmax_t{1} << 20;
  Fail(name, " has ", space.available / kMiB, " MiB free, and the checkpoint's tensors take ",
       bytes / kMiB, " MiB.");
}

NewCheckpointDirectory::~NewCheckpointDirectory() {
  if (!kept_) Remove();
}

void NewCheckpointDirectory::Remove() noexcept {
  std::error_code error;
  if (made_) {
    std::filesystem::remove_all(directory_, error);
    return;
  }
  for (std::filesystem::directory_iterator entry(directory_, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    std::filesystem::remove_all(entry->path(), ignored);
  }
}

}  // namespace adder
