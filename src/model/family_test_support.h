// For tests of family files: configs from text, small edits of them, and a check that a plan claims
// every tensor of a real checkpoint exactly once with the right shape.
#pragma once

#include <gtest/gtest.h>
#include <algorithm>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "model/family.h"
#include "model/plan.h"

namespace adder::testing {

// Folder of the shared test data: $ADDER_SHARED, or "shared" beside the sources.
inline std::filesystem::path SharedFolder() {
  const char* variable = std::getenv("ADDER_SHARED");
  return variable != nullptr ? std::filesystem::path(variable)
                             : std::filesystem::path(ADDER_SOURCE_DIR "/../shared");
}

// The plan of a config that need not be on disk.
inline Plan BuildPlan(const Json& config, const TensorNames& names = TensorNames::Planned(false)) {
  const JsonObject object(config, "config.json");
  return FindFamily(object).build(object, names);
}

// The message of the Error that building a plan of `config` throws; empty when it throws none.
inline std::string BuildError(const Json& config) {
  try {
    BuildPlan(config);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// `config` with the field `key` set to the JSON text `value`.
inline Json With(Json config, const std::string& key, const std::string& value) {
  config[key] = ParseJson(value, "test value");
  return config;
}
inline Json Without(Json config, const std::string& key) {
  config.erase(key);
  return config;
}

// Expects that `config` with `key` set to `value` is refused with a message naming `named`.
inline void ExpectRefused(const Json& config, const std::string& key, const std::string& value,
                          const std::string& named) {
  const std::string error = BuildError(With(config, key, value));
  EXPECT_NE(error, "") << key << " = " << value << " was accepted";
  EXPECT_NE(error.find(named), std::string::npos)
      << key << " = " << value << " gave the message: " << error;
}

// Name and shape of each tensor of DIR/model.safetensors. The header is trusted: test data only.
inline std::map<std::string, Shape> CheckpointShapes(const std::filesystem::path& directory) {
  std::ifstream file(directory / "model.safetensors", std::ios::binary);
  uint64_t size = 0;
  file.read(reinterpret_cast<char*>(&size), sizeof size);
  std::string header(size, ' ');
  file.read(header.data(), static_cast<std::streamsize>(size));
  if (!file) Fail(directory.string(), "/model.safetensors cannot be read.");
  std::map<std::string, Shape> shapes;
  const Json parsed = ParseJson(header, "header");
  for (const auto& [name, tensor] : parsed.items()) {
    if (name != "__metadata__") shapes[name] = tensor["shape"].get<Shape>();
  }
  return shapes;
}

inline TensorNames NamesOf(const std::map<std::string, Shape>& shapes) {
  return TensorNames([shapes](const std::string& name) { return shapes.count(name) > 0; },
                     [shapes](const std::string& name) { return shapes.at(name); });
}

// Expects that the plan's parts claim each tensor's rows once, with the shapes of the checkpoint.
inline void ExpectClaimsAll(const Plan& plan, const std::map<std::string, Shape>& shapes) {
  std::set<std::string> claimed;
  // Rows of one expert of one module claimed so far, as a sum; overlaps are found by begin.
  std::map<std::pair<std::string, int64_t>, std::set<int64_t>> begins;
  std::map<std::pair<std::string, int64_t>, int64_t> rows;
  for (const MatrixRef& matrix : plan.matrices) {
    for (const MatrixPart& part : matrix.parts) {
      const std::string weight = part.bare_name ? part.module : part.module + ".weight";
      ASSERT_TRUE(shapes.count(weight)) << "missing " << weight;
      Shape leading;
      if (part.experts > 0) leading.push_back(part.experts);
      leading.push_back(part.rows);
      Shape found = shapes.at(weight);
      const int64_t width = found.back();
      found.pop_back();
      EXPECT_EQ(found, leading) << weight;
      const int64_t cols = part.transposed ? matrix.rows : matrix.cols;
      if (shapes.count(part.module + ".scales")) {
        Shape scales = shapes.at(part.module + ".scales");
        EXPECT_EQ(shapes.at(part.module + ".biases"), scales) << weight;
        const int64_t groups = scales.back();
        scales.pop_back();
        EXPECT_EQ(scales, leading) << weight;
        EXPECT_EQ(cols % groups, 0) << weight;
        EXPECT_EQ(width * 32 % cols, 0) << weight;  // whole bits per value
        claimed.insert({part.module + ".scales", part.module + ".biases"});
      } else {
        EXPECT_EQ(width, cols) << weight;
      }
      claimed.insert(weight);
      const auto key = std::make_pair(weight, part.expert);
      EXPECT_TRUE(begins[key].insert(part.row_begin).second) << "claimed twice: " << weight;
      rows[key] += part.row_count;
      EXPECT_LE(rows[key], part.rows) << "claimed twice: " << weight;
    }
  }
  for (const MatrixRef& matrix : plan.matrices) {
    for (const MatrixPart& part : matrix.parts) {
      const std::string weight = part.bare_name ? part.module : part.module + ".weight";
      for (int64_t expert = 0; expert < std::max<int64_t>(part.experts, 1); ++expert) {
        EXPECT_EQ((rows[std::make_pair(weight, expert)]), part.rows) << weight << " " << expert;
      }
    }
  }
  for (const VectorRef& vector : plan.vectors) {
    for (const VectorPart& part : vector.parts) {
      ASSERT_TRUE(shapes.count(part.tensor)) << "missing " << part.tensor;
      bool accepted = false;
      for (const Shape& shape : part.shapes) accepted |= shape == shapes.at(part.tensor);
      EXPECT_TRUE(accepted) << part.tensor << " is " << ShapeString(shapes.at(part.tensor));
      EXPECT_TRUE(claimed.insert(part.tensor).second) << "claimed twice: " << part.tensor;
    }
  }
  const auto ignored = [&plan](const std::string& name) {
    return std::any_of(
        plan.ignored_tensors.begin(), plan.ignored_tensors.end(), [&](const std::string& pattern) {
          return pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1))
                                        : name == pattern;
        });
  };
  for (const auto& [name, shape] : shapes) {
    EXPECT_TRUE(claimed.count(name) || ignored(name)) << "left over " << name;
    EXPECT_FALSE(claimed.count(name) && ignored(name)) << "claimed and ignored: " << name;
  }
}

// Reads SHARED/conformance/FOLDER, builds its plan, checks all claims and the parameter count that
// case.json states, and returns the plan. Call through the macro, which skips without the data.
inline Plan CheckConformanceCase(const std::string& folder) {
  const std::filesystem::path directory = SharedFolder() / "conformance" / folder;
  const std::map<std::string, Shape> shapes = CheckpointShapes(directory);
  Plan plan = BuildPlan(ReadJsonFile(directory / "config.json"), NamesOf(shapes));
  ExpectClaimsAll(plan, shapes);
  EXPECT_EQ(ParameterCount(plan), ReadJsonFile(directory / "case.json")["params"].get<int64_t>());
  return plan;
}

// Builds SHARED/geometries/NAME.json in both layouts and checks its parameter count.
inline Plan CheckGeometry(const std::string& name) {
  const Json config = ReadJsonFile(SharedFolder() / "geometries" / (name + ".json"));
  Plan plan = BuildPlan(config, TensorNames::Planned(false));
  EXPECT_EQ(ParameterCount(plan), config["_params_computed"].get<int64_t>()) << name;
  const Plan mlx = BuildPlan(config, TensorNames::Planned(true));
  EXPECT_EQ(ParameterCount(mlx), ParameterCount(plan)) << name;
  return plan;
}

// Sizes that no field may have: each is refused by name.
inline void ExpectAbsurdSizesRefused(const Json& config, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    for (const char* value : {"-1", "0", "1152921504606846976", "18446744073709551615", "1e300",
                              "2.5", "\"64\"", "true", "[]", "{\"__float__\":\"NaN\"}"}) {
      ExpectRefused(config, key, value, key);
    }
  }
}

// Multipliers that are not numbers.
inline void ExpectAbsurdScalesRefused(const Json& config, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    for (const char* value : {"NaN", "Infinity", "-Infinity", "1e300", "\"1\"", "[1]"}) {
      ExpectRefused(config, key, value, key);
    }
  }
}

#define ADDER_SKIP_WITHOUT(folder)                                                             \
  if (!std::filesystem::exists(::adder::testing::SharedFolder() / (folder))) {                 \
    GTEST_SKIP() << "no test data: " << (::adder::testing::SharedFolder() / (folder)).string() \
                 << " is absent; set ADDER_SHARED to the folder that holds " #folder ".";      \
  }

}  // namespace adder::testing
