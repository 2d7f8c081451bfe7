#include "profile.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "command.h"
#include "core/error.h"
#include "measure/text_table.h"

namespace adder::cli {
namespace {

struct HostField {
  const char* name;
  double HostTimes::*seconds;
};
constexpr HostField kHostFields[] = {{"prepare", &HostTimes::prepare},
                                     {"forward", &HostTimes::forward},
                                     {"sample", &HostTimes::sample},
                                     {"wait", &HostTimes::wait}};

// Of one field over all tokens: at a place between 0 (the least) and 1 (the most).
double Quantile(const std::vector<HostTimes>& tokens, const HostField& field, double place) {
  if (tokens.empty()) return 0;
  std::vector<double> values;
  for (const HostTimes& times : tokens) values.push_back(times.*field.seconds);
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(place * static_cast<double>(values.size() - 1))];
}

std::string HostTable(const ProfileResult& profile) {
  std::vector<std::vector<std::string>> rows{{"host, us per token", "p50", "p99", "max"}};
  for (const HostField& field : kHostFields) {
    std::vector<std::string> row{field.name};
    for (double place : {0.5, 0.99, 1.0}) {
      row.push_back(Fixed(1e6 * Quantile(profile.tokens, field, place), 1));
    }
    rows.push_back(std::move(row));
  }
  return TextTable(rows);
}

std::string TokenTable(const ProfileResult& profile) {
  std::vector<std::vector<std::string>> rows{{"token, us"}};
  for (const HostField& field : kHostFields) rows.front().emplace_back(field.name);
  for (size_t i = 0; i < profile.tokens.size(); ++i) {
    std::vector<std::string> row{std::to_string(i)};
    for (const HostField& field : kHostFields) {
      row.push_back(Fixed(1e6 * profile.tokens[i].*field.seconds, 1));
    }
    rows.push_back(std::move(row));
  }
  return TextTable(rows);
}

}  // namespace

bool ProfileOptions::wanted() const {
  const char* detail = std::getenv("ADDER_PROFILE_PIPELINE_DETAIL");
  return !mode.empty() || !chart.empty() || (detail != nullptr && std::string_view(detail) == "1");
}

void AddProfileOptions(CLI::App& command, ProfileOptions& options) {
  command
      .add_flag("--profile{kinds}", options.mode,
                "Show where a token's time goes; --profile=full lists every op and token")
      ->check(CLI::IsMember({"kinds", "full"}));
  command.add_option("--profile-chart", options.chart, "Write the profile's chart (SVG) here");
}

ProfileResult MakeProfile(const LoadedModel& model, std::vector<HostTimes> tokens,
                          const std::vector<StepPart>& parts, int64_t batch, int64_t context) {
  ProfileResult profile;
  profile.tokens = std::move(tokens);
  if (!parts.empty()) {
    profile.report = MakeStepReport(model.executor->program(), parts, batch, context,
                                    model.executor->DecodeTraffic());
  }
  return profile;
}

std::string ProfileText(const ProfileResult& profile, const ProfileOptions& options) {
  const bool full = options.mode == "full";
  std::string text = "\n";
  if (full) text += TokenTable(profile) + "\n";
  text += HostTable(profile) + "\n";
  if (profile.report.rows.empty()) {
    text += "Ops are timed one by one only where the device runs whole steps (--device cuda).\n";
  } else {
    text += StepReportText(profile.report, full);
  }
  return text;
}

Json ProfileJson(const ProfileResult& profile) {
  Json tokens = Json::array();
  for (const HostTimes& times : profile.tokens) {
    Json token;
    for (const HostField& field : kHostFields) {
      token[Concat(field.name, "_seconds")] = times.*field.seconds;
    }
    tokens.push_back(std::move(token));
  }
  Json json = {{"tokens", std::move(tokens)}};
  if (!profile.report.rows.empty()) json["step"] = StepReportJson(profile.report);
  return json;
}

void WriteProfileChart(const ProfileResult& profile, const ProfileOptions& options) {
  if (options.chart.empty()) return;
  if (profile.report.rows.empty()) {
    Fail("--profile-chart draws the ops of a step, which are timed only with --device cuda.");
  }
  std::ofstream file(options.chart);
  file << StepReportSvg(profile.report,
                        Concat("One decode step: ", Fixed(profile.report.total.seconds * 1e6, 1),
                               " us, ", profile.report.total.launches, " launches"));
  if (!file.flush()) Fail("Cannot write to ", options.chart, ".");
}

}  // namespace adder::cli
