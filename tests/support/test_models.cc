#include "tests/support/test_models.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <ostream>

#include "checkpoint/safetensors.h"
#include "checkpoint/weight_store.h"
#include "core/error.h"
#include "core/file.h"
#include "model/family.h"
#include "tests/support/synthetic_checkpoint.h"
#include "tests/support/temporary_folder.h"

namespace adder::test {
namespace {

namespace fs = std::filesystem;

bool IsImplemented(const std::string& family) {
  const auto& families = AllFamilies();
  return std::any_of(families.begin(), families.end(),
                     [&](const Family* known) { return known->model_type == family; });
}

std::vector<TestModel> FindKitModels() {
  std::vector<TestModel> models;
  const fs::path own = RepositoryFolder() / "tests" / "cases";
  if (!fs::exists(own)) {
    Fail("There are no test cases at ", own.string(),
         "; set ADDER_REPOSITORY to a checkout of the repository.");
  }
  for (const fs::path& folder : {ConformanceKit() / "models", ConformanceKit() / "mlx", own}) {
    std::error_code missing;
    for (const auto& entry : fs::directory_iterator(folder, missing)) {
      if (!fs::exists(entry.path() / "case.json")) continue;
      const Json description = ReadJsonFile(entry.path() / "case.json");
      if (IsImplemented(description.at("family"))) {
        models.push_back({entry.path().filename(), entry.path()});
      }
    }
  }
  std::sort(models.begin(), models.end(),
            [](const TestModel& a, const TestModel& b) { return a.name < b.name; });
  return models;
}

template <class T>
std::vector<T> Values(const TensorView* tensor) {
  if (tensor == nullptr) return {};
  std::vector<T> values(tensor->bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor->bytes.data(), values.size() * sizeof(T));
  return values;
}

}  // namespace

fs::path RepositoryFolder() {
  const char* repository = std::getenv("ADDER_REPOSITORY");
  return repository != nullptr ? repository : ADDER_SOURCE_DIR;
}

fs::path ConformanceKit() {
  const char* shared = std::getenv("ADDER_SHARED");
  return (shared != nullptr ? fs::path(shared) : RepositoryFolder() / ".." / "shared") /
         "conformance";
}

std::ostream& operator<<(std::ostream& out, const TestModel& model) { return out << model.name; }

const std::vector<TestModel>& KitModels() {
  static const std::vector<TestModel> models = FindKitModels();
  return models;
}

const std::vector<TestModel>& DemoModels() {
  static const std::vector<TestModel> models = [] {
    const char* elsewhere = std::getenv("ADDER_DEMO_MODEL");
    const fs::path demo =
        elsewhere != nullptr ? fs::path(elsewhere) : RepositoryFolder() / "models" / "demo";
    return fs::exists(demo / "expected.safetensors") ? std::vector<TestModel>{{"demo", demo}}
                                                     : std::vector<TestModel>{};
  }();
  return models;
}

std::vector<TestModel> TinyModels() {
  std::vector<TestModel> models = KitModels();
  for (const SyntheticModel& synthetic : SyntheticModels()) models.push_back({synthetic.name, {}});
  return models;
}

Program LoadDirectory(const fs::path& directory, int64_t context) {
  const auto store = WeightStore::Open(directory);
  const JsonObject config = store->config_object();
  auto plan = std::make_shared<Plan>(FindFamily(config).build(config, store->names()));
  if (context != 0) OpenForPositions(*plan, context);
  auto weights = BindWeights(store, *plan);
  return LowerPlan(std::move(plan), std::move(weights));
}

Program LoadEdited(const fs::path& directory, const Json& fields, int64_t context) {
  const TemporaryFolder folder(directory.filename().string() + "_edited");
  fs::create_directories(folder.path());
  for (const auto& entry : fs::directory_iterator(fs::absolute(directory))) {
    const fs::path name = entry.path().filename();
    if (name != "config.json") fs::create_symlink(entry.path(), folder.path() / name);
  }
  Json config = ReadJsonFile(directory / "config.json");
  config.update(fields);
  std::ofstream(folder.path() / "config.json") << PrintJson(config);
  return LoadDirectory(folder.path(), context);
}

Program LoadProgram(const TestModel& model) {
  if (!model.directory.empty()) return LoadDirectory(model.directory);
  for (const SyntheticModel& synthetic : SyntheticModels()) {
    if (synthetic.name == model.name) {
      const TemporaryFolder folder(model.name);
      WriteSyntheticCheckpoint(synthetic, folder.path());
      return LoadDirectory(folder.path());
    }
  }
  Fail("There is no test model '", model.name, "'.");
}

Expected LoadExpected(const TestModel& model) {
  const MappedFile file(model.directory / "expected.safetensors");
  const std::vector<TensorView> views = ParseSafetensors(file.bytes(), "expected.safetensors");
  const auto find = [&](const std::string& name, size_t prompt) {
    const auto found = std::find_if(views.begin(), views.end(), [&](const TensorView& view) {
      return view.name == Concat(name, "_", prompt);
    });
    return found == views.end() ? nullptr : &*found;
  };
  Expected expected;
  for (size_t i = 0; find("prompt", i) != nullptr; ++i) {
    expected.prompts.push_back(
        {Values<int32_t>(find("prompt", i)), Values<int32_t>(find("greedy", i)),
         Values<float>(find("margins", i)), Values<float>(find("prefill_logits", i)),
         Values<float>(find("step_logits", i))});
  }
  // The kit's tolerances are 30 times each case's rounding error, between 2.6e-4 and 9e-4; the demo
  // model states none.
  expected.f32_tolerance = 1e-3;
  if (fs::exists(model.directory / "case.json")) {
    expected.f32_tolerance =
        ReadJsonFile(model.directory / "case.json").at("suggested_atol").at("fp32_engine");
  }
  return expected;
}

}  // namespace adder::test
