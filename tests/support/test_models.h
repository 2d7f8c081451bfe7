// The models that the cross-room tests run: cases of the conformance kit, the demo model, and
// synthetic checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include "core/json.h"
#include "program/program.h"

namespace adder::test {

// The checkout whose tests/cases and models/demo the tests use: $ADDER_REPOSITORY, or the one that
// the tests were built from.
std::filesystem::path RepositoryFolder();

// Where the conformance kit lies: $ADDER_SHARED/conformance, or "../shared/conformance" beside the
// repository. Need not exist.
std::filesystem::path ConformanceKit();

struct TestModel {
  std::string name;
  std::filesystem::path directory;  // empty: a synthetic model
};
// For GoogleTest's messages.
std::ostream& operator<<(std::ostream& out, const TestModel& model);

// Cases of the kit whose family is implemented, and those of families and formats that it lacks
// (tests/cases), in order of name. Throws Error when the repository's are not there.
const std::vector<TestModel>& KitModels();
// The demo model, when it is there: $ADDER_DEMO_MODEL, or models/demo of the repository.
const std::vector<TestModel>& DemoModels();
// Kit and synthetic models: small enough for many runs of the interpreter.
std::vector<TestModel> TinyModels();

// Opens, plans, binds and lowers. `context`: tokens of the longest text, as OpenForPositions takes
// it; 0: all of the model's positions.
Program LoadDirectory(const std::filesystem::path& directory, int64_t context = 0);
// The same of the checkpoint with the fields in its config, as if they had been in the file.
Program LoadEdited(const std::filesystem::path& directory, const Json& fields, int64_t context = 0);
Program LoadProgram(const TestModel& model);

// What expected.safetensors says about one prompt.
struct ExpectedPrompt {
  std::vector<int32_t> prompt;
  std::vector<int32_t> greedy;  // greedy continuation
  std::vector<float> margins;   // of each greedy step
  std::vector<float> prefill;   // [prompt, vocab]; empty when not recorded
  std::vector<float> steps;     // [8, vocab] of the first greedy steps; empty when not recorded
};
struct Expected {
  std::vector<ExpectedPrompt> prompts;
  double f32_tolerance = 0;  // absolute, on every logit
};
Expected LoadExpected(const TestModel& model);

}  // namespace adder::test
