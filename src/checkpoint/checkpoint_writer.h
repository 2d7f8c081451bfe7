// Writes the weights of a checkpoint directory: one safetensors file, or shards with an index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace adder {

// Largest shard that is written, in bytes, as published checkpoints do.
inline constexpr int64_t kMaxShardBytes = int64_t{5} << 30;

class CheckpointWriter {
 public:
  // Declares all tensors in the order in which they will be written. The directory must exist.
  CheckpointWriter(std::filesystem::path directory, std::vector<TensorSpec> tensors,
                   std::map<std::string, std::string> metadata,
                   int64_t max_shard_bytes = kMaxShardBytes);

  // Appends the next bytes; a call must not cross from one tensor into the next.
  void Append(std::span<const std::byte> bytes);
  // Completes the last file and writes the index when there are several. Throws Error when bytes
  // are missing.
  void Finish();

 private:
  struct Shard {
    std::string name;
    std::vector<TensorSpec> tensors;
    int64_t bytes = 0;
  };
  void OpenShard();

  std::filesystem::path directory_;
  std::map<std::string, std::string> metadata_;
  std::vector<Shard> shards_;
  size_t current_ = 0;
  int64_t remaining_ = 0;  // bytes still to come in the current shard
  std::unique_ptr<SafetensorsWriter> writer_;
};

// A directory for a new checkpoint. What is in it goes again, and the directory if it was made for
// it, unless Keep is called: a half-written checkpoint helps nobody.
class NewCheckpointDirectory {
 public:
  // Throws Error when `directory` exists and is not empty (a checkpoint is never overwritten), when
  // it cannot be made, or when `tensors` take more bytes than are free there.
  NewCheckpointDirectory(std::filesystem::path directory, const std::vector<TensorSpec>& tensors);
  ~NewCheckpointDirectory();
  NewCheckpointDirectory(const NewCheckpointDirectory&) = delete;
  NewCheckpointDirectory& operator=(const NewCheckpointDirectory&) = delete;

  void Keep() { kept_ = true; }

 private:
  void Remove() noexcept;

  std::filesystem::path directory_;
  bool made_ = false;
  bool kept_ = false;
};

}  // namespace adder
