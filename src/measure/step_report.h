// Where the time of a decode step goes: its parts with what they read, as a table and as a chart.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"
#include "program/executor.h"
#include "program/program.h"
#include "program/step_profile.h"

namespace adder {

struct StepRow {
  int op = -1;         // index into the program's ops; -1: a group, or the choice of tokens
  int64_t layer = -1;  // -1: not in a layer
  std::string name;    // "layers.3.mamba2.in_proj", "sample"; of a group "mamba2.in_proj"
  int64_t ops = 1;
  int64_t launches = 0;
  int64_t bytes = 0;  // predicted by the program's costs
  double seconds = 0;

  double bytes_per_second() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
};

struct StepReport {
  std::vector<StepRow> rows;    // one per part, in order
  std::vector<StepRow> groups;  // equal ops of all layers, the longest first
  StepRow total;
};

// Bytes that a step of `batch` sequences, each with `context` positions before, reads and writes
// for one op, by the program's costs and what the backend says of states; writes of states that not
// every step makes count as their mean.
struct StepBytes {
  int64_t weights = 0;
  int64_t recurrent = 0;
  int64_t kv = 0;
  int64_t sum() const { return weights + recurrent + kv; }
};
StepBytes BytesOfOp(const Program& program, int op, int64_t batch, int64_t context,
                    const StateTraffic& traffic);

// `parts` are those of a step of `batch` sequences, each with `context` positions before. Throws
// Error when their number is not that of the program's parts.
StepReport MakeStepReport(const Program& program, const std::vector<StepPart>& parts, int64_t batch,
                          int64_t context, const StateTraffic& traffic);

// The name without its layer: "layers.3.mamba2.in_proj" is "mamba2.in_proj".
std::string KindOfOp(const Op& op);

// The groups as a table; with `full` every row before that.
std::string StepReportText(const StepReport& report, bool full);
Json StepReportJson(const StepReport& report);
// A complete SVG file: a bar per group.
std::string StepReportSvg(const StepReport& report, const std::string& title);

}  // namespace adder
