// --profile of the commands that decode: where the time of a token goes.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "core/json.h"
#include "loader/loader.h"
#include "measure/decode_run.h"
#include "measure/step_report.h"

namespace adder::cli {

struct ProfileOptions {
  std::string mode;   // "", "kinds" or "full"
  std::string chart;  // a file; empty: none

  // Asked for by an option, or by the environment variable ADDER_PROFILE_PIPELINE_DETAIL=1.
  bool wanted() const;
};
// --profile and --profile-chart.
void AddProfileOptions(CLI::App& command, ProfileOptions& options);

struct ProfileResult {
  std::vector<HostTimes> tokens;  // the host's part of every step
  StepReport report;              // without rows where the host runs the steps
};

// `parts` may be empty. `context`: positions before the measured step.
ProfileResult MakeProfile(const LoadedModel& model, std::vector<HostTimes> tokens,
                          const std::vector<StepPart>& parts, int64_t batch, int64_t context);
std::string ProfileText(const ProfileResult& profile, const ProfileOptions& options);
Json ProfileJson(const ProfileResult& profile);
// Nothing without --profile-chart. Throws Error when there is nothing to draw or the file cannot be
// written.
void WriteProfileChart(const ProfileResult& profile, const ProfileOptions& options);

}  // namespace adder::cli
