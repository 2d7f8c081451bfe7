#include "checkpoint/weight_store.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"

namespace adder {
namespace {

namespace fs = std::filesystem;

constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr char kSingleName[] = "model.safetensors";

// The shard of every tensor, as the index says; the shards' names are checked to be plain.
std::map<std::string, std::string> ReadIndex(const fs::path& path) {
  const Json index = ReadJsonFile(path.string());
  const JsonObject object(index, path.string());
  const Json* map = object.Find({"weight_map"});
  if (map == nullptr || !map->is_object() || map->empty()) {
    Fail(path.string(), " lacks the object weight_map, which says where each tensor is.");
  }
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string()) {
      Fail(path.string(), ": weight_map has no file name for the tensor ", tensor, ".");
    }
    const std::string& name = shard.get_ref<const std::string&>();
    // A checkpoint must not reach files outside its own directory.
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      Fail(path.string(), ": weight_map names the file \"", name, "\" for the tensor ", tensor,
           "; it must be a plain file name in the checkpoint's directory.");
    }
    shards[tensor] = name;
  }
  return shards;
}

}  // namespace

std::shared_ptr<const WeightStore> WeightStore::Open(const fs::path& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    Fail(directory.string(),
         " is not a directory; a checkpoint is a directory with config.json and ", kSingleName,
         ".");
  }
  auto store = std::make_shared<WeightStore>();
  store->directory_ = directory;
  store->config_ = ReadJsonFile((directory / "config.json").string());
  store->config_object();  // must be an object

  std::map<std::string, std::string> index;
  std::set<std::string> shards;
  const fs::path index_path = directory / kIndexName;
  const bool sharded = fs::exists(index_path, error);
  if (sharded) {
    index = ReadIndex(index_path);
    for (const auto& [tensor, shard] : index) shards.insert(shard);
    for (const std::string& shard : shards) {
      if (fs::exists(directory / shard, error)) continue;
      const auto needed = std::find_if(index.begin(), index.end(),
                                       [&](const auto& entry) { return entry.second == shard; });
      Fail("The shard ", (directory / shard).string(), " is missing; ", kIndexName,
           " places the tensor ", needed->first, " in it.");
    }
  } else {
    if (!fs::exists(directory / kSingleName, error)) {
      Fail(directory.string(), " holds neither ", kSingleName, " nor ", kIndexName, ".");
    }
    shards.insert(kSingleName);
  }

  for (const std::string& shard : shards) {
    const std::string path = (directory / shard).string();
    store->files_.emplace_back(path);
    for (TensorView& tensor : ParseSafetensors(store->files_.back().bytes(), path)) {
      if (sharded) {
        const auto entry = index.find(tensor.name);
        if (entry == index.end()) {
          Fail(path, ": the tensor ", tensor.name, " is not listed in ", kIndexName, ".");
        }
        if (entry->second != shard) {
          Fail(path, ": the tensor ", tensor.name, " should be in ", entry->second,
               " according to ", kIndexName, ".");
        }
      }
      std::string name = tensor.name;
      store->tensors_.emplace(std::move(name), std::move(tensor));
    }
  }
  for (const auto& [tensor, shard] : index) {
    if (store->Find(tensor) == nullptr) {
      Fail((directory / shard).string(), " lacks the tensor ", tensor, ", which ", kIndexName,
           " places there.");
    }
  }
  return store;
}

JsonObject WeightStore::config_object() const {
  return JsonObject(config_, (directory_ / "config.json").string());
}

const TensorView* WeightStore::Find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::vector<const TensorView*> WeightStore::Tensors() const {
  std::vector<const TensorView*> tensors;
  tensors.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) tensors.push_back(&tensor);
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorView* a, const TensorView* b) { return a->name < b->name; });
  return tensors;
}

TensorNames WeightStore::names() const {
  return TensorNames([this](const std::string& name) { return Find(name) != nullptr; },
                     [this](const std::string& name) { return Find(name)->shape; });
}

int64_t WeightStore::bytes() const {
  int64_t total = 0;
  for (const auto& [name, tensor] : tensors_) total += static_cast<int64_t>(tensor.bytes.size());
  return total;
}

}  // namespace adder
