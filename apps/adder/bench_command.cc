// adder bench decode: speed of one sequence, against what memory allows.
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <utility>

#include "adder_version.h"
#include "command.h"
#include "core/error.h"
#include "core/thread_pool.h"
#ifdef ADDER_HAS_CUDA
#include "cuda/device_bandwidth.h"
#include "cuda/driver_version.h"
#endif
#include "measure/bandwidth_probe.h"
#include "measure/decode_bench.h"
#include "profile.h"

namespace adder::cli {
namespace {

struct Options {
  ModelOptions model;
  DecodeBenchOptions bench;
  std::vector<int64_t> batches{1};
  ProfileOptions profile;
  std::string csv;
  bool json = false;
};

std::string UtcNow() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

// What reads the weights, and how fast it reads memory.
struct Bandwidth {
  double bytes_per_second = 0;
  int64_t buffer_bytes = 0;
  std::string warning;
};

bool UsesCuda(const Options& options) {
  return options.model.device == "cuda" ||
         (options.model.device == "auto" && DefaultDevice() == Device::kCuda);
}

Bandwidth Probe([[maybe_unused]] bool cuda, int threads) {
#ifdef ADDER_HAS_CUDA
  if (cuda) {
    const DeviceBandwidth device = ProbeDeviceBandwidth();
    return {device.bytes_per_second, device.buffer_bytes, ""};
  }
#endif
  const BandwidthProbe host = ProbeReadBandwidth(threads);
  Bandwidth bandwidth{host.bytes_per_second, host.buffer_bytes, ""};
  if (!host.beyond_cache()) {
    bandwidth.warning =
        Concat("adder: warning: the bandwidth buffer is not much larger than the cache of ",
               Megabytes(host.cache_bytes), ", so the read bandwidth may be that of the cache.\n");
  }
  return bandwidth;
}

// Calls per step; zero where the host runs the steps itself.
double PerStep(const DecodeBenchResult& result, int64_t calls) {
  const int64_t steps = result.device_counters.steps;
  return steps > 0 ? static_cast<double>(calls) / static_cast<double>(steps) : 0;
}

// The driver's release; empty without one.
std::string DriverText() {
#ifdef ADDER_HAS_CUDA
  return DriverVersion();
#else
  return "";
#endif
}

// The report as named values, in the order of the CSV columns.
Json Report(const Options& options, const LoadedModel& model, const DecodeBenchResult& result,
            const Bandwidth& probe, int threads, int64_t peak_bytes) {
  const DecodeCounters& counters = result.device_counters;
  const double attained = result.steps_per_second() * static_cast<double>(result.bytes_per_step());
  return {{"date", UtcNow()},
          {"version", ADDER_VERSION},
          {"commit", ADDER_COMMIT},
          {"model", std::filesystem::absolute(model.directory).lexically_normal().string()},
          {"family", model.plan->family},
          {"parameters", ParameterCount(*model.plan)},
          {"device", UsesCuda(options) ? "cuda" : "cpu"},
          {"driver", UsesCuda(options) ? DriverText() : ""},
          {"simd_target", CpuSimdTarget()},
          {"threads", threads},
          {"compute", options.model.compute},
          {"prompt_tokens", options.bench.prompt_tokens},
          {"max_tokens", options.bench.max_tokens},
          {"batch", result.batch},
          {"repeat", options.bench.repeat},
          {"prefill_tokens_per_second_median", result.prefill_rate.median},
          {"prefill_tokens_per_second_min", result.prefill_rate.min},
          {"prefill_tokens_per_second_max", result.prefill_rate.max},
          {"decode_tokens_per_second_median", result.decode_rate.median},
          {"decode_tokens_per_second_min", result.decode_rate.min},
          {"decode_tokens_per_second_max", result.decode_rate.max},
          {"launches_per_step", result.launches_per_step},
          {"synchronizations_per_step", PerStep(result, counters.synchronizations)},
          {"output_waits_per_step", PerStep(result, counters.output_waits)},
          {"allocations_per_step", PerStep(result, counters.allocations)},
          {"host_copies_per_step", PerStep(result, counters.copies)},
          {"step_seconds_p50", result.step_seconds_p50},
          {"step_seconds_p99", result.step_seconds_p99},
          {"weight_bytes_per_step", result.weight_bytes},
          {"state_bytes_per_step", result.state_bytes},
          {"kv_bytes_per_step", result.kv_bytes},
          {"attained_bytes_per_second", attained},
          {"read_bandwidth_bytes_per_second", probe.bytes_per_second},
          {"bandwidth_fraction", attained / probe.bytes_per_second},
          {"peak_resident_bytes", peak_bytes},
          {"load_seconds", model.load_seconds},
          {"state_dtype", options.model.state_dtype}};
}

std::string CsvField(const Json& value) {
  if (!value.is_string()) return value.dump();
  std::string field = "\"";
  for (char c : value.get<std::string>())
    field += c == '"' ? std::string("\"\"") : std::string(1, c);
  return field + "\"";
}

void AppendCsv(const std::string& path, const Json& report) {
  std::string header;
  std::string row;
  for (const auto& [name, value] : report.items()) {
    header += (header.empty() ? "" : ",") + name;
    row += (row.empty() ? "" : ",") + CsvField(value);
  }
  std::string first_line;
  std::ifstream existing(path);
  std::getline(existing, first_line);
  if (!first_line.empty() && first_line != header) {
    Fail(path, " has other columns than this version of adder writes; give another file to --csv.");
  }
  std::ofstream file(path, std::ios::app);
  if (first_line.empty()) file << header << "\n";
  file << row << "\n";
  if (!file.flush()) Fail("Cannot write to ", path, ".");
}

std::string SpreadText(const Spread& spread) {
  return Concat(Fixed(spread.median, 1), " tok/s median (min ", Fixed(spread.min, 1), ", max ",
                Fixed(spread.max, 1), ")");
}

// What a step asks of the host, counted in the calls themselves.
std::string CallsText(const DecodeBenchResult& result) {
  const DecodeCounters& counters = result.device_counters;
  if (counters.steps == 0) return "";
  return Concat("\nhost per step    ", Fixed(PerStep(result, counters.synchronizations), 2),
                " synchronizations, ", Fixed(PerStep(result, counters.allocations), 2),
                " allocations, ", Fixed(PerStep(result, counters.copies), 2), " copies, ",
                Fixed(PerStep(result, counters.output_waits), 2),
                " waits for the tokens of the step before, while the next runs");
}

void PrintText(const Options& options, const LoadedModel& model, const DecodeBenchResult& result,
               const Bandwidth& probe, int64_t peak_bytes) {
  const double attained = result.steps_per_second() * static_cast<double>(result.bytes_per_step());
  std::string text = Concat(
      "model            ", model.directory.string(), " (", model.plan->family, ", ",
      ParameterCount(*model.plan), " parameters)", "\ndevice           ",
      model.executor->Description(), UsesCuda(options) ? Concat(", driver ", DriverText()) : "",
      "\nprefill          ", SpreadText(result.prefill_rate), ", ", options.bench.prompt_tokens,
      " tokens", "\ndecode           ", SpreadText(result.decode_rate), ", ",
      options.bench.max_tokens, " tokens",
      result.batch > 1 ? Concat(" each of ", result.batch, " sequences") : "",
      "\nstep             p50 ", Fixed(result.step_seconds_p50 * 1e6, 1), " us, p99 ",
      Fixed(result.step_seconds_p99 * 1e6, 1), " us",
      result.launches_per_step > 0 ? Concat(", ", result.launches_per_step, " launches") : "",
      CallsText(result), "\nbytes per token  ", Megabytes(result.bytes_per_step()), ": weights ",
      Megabytes(result.weight_bytes), ", state ", Megabytes(result.state_bytes), ", KV ",
      Megabytes(result.kv_bytes), "\nattained         ", Fixed(attained / 1e9, 1), " GB/s, ",
      Fixed(100 * attained / probe.bytes_per_second, 0), "% of the read bandwidth of ",
      Fixed(probe.bytes_per_second / 1e9, 1), " GB/s (buffer ", Megabytes(probe.buffer_bytes), ")",
      "\npeak memory      ", Megabytes(peak_bytes), " (weights ",
      Megabytes(model.executor->WeightBytes()), ")\n");
  Print(text);
  std::cerr << probe.warning;
}

std::optional<ProfileResult> Profile(const Options& options, const LoadedModel& model,
                                     const DecodeBenchResult& result) {
  if (!options.profile.wanted()) return std::nullopt;
  return MakeProfile(model, result.host_times, result.parts, result.batch,
                     options.bench.prompt_tokens);
}

void Run(const Options& options) {
  const LoadedModel model = Load(options.model);
  CheckPositions(*model.plan, options.bench.prompt_tokens, options.bench.max_tokens,
                 "lower --prompt-tokens or --max-tokens.");
  std::vector<DecodeBenchResult> results;
  {
    ProgressBar bar("Measuring");
    for (size_t i = 0; i < options.batches.size(); ++i) {
      DecodeBenchOptions bench = options.bench;
      bench.batch = options.batches[i];
      bench.profile = options.profile.wanted();
      bench.progress = [&](int done, int all) {
        bar.Update((static_cast<double>(i) + static_cast<double>(done) / all) /
                   static_cast<double>(options.batches.size()));
      };
      results.push_back(RunDecodeBench(*model.executor, bench));
    }
  }
  // Before the probe, whose buffer is not the model's.
  const int64_t peak_bytes = PeakResidentBytes();
  const int threads = options.model.threads > 0 ? options.model.threads : AvailableCores();
  const Bandwidth probe = Probe(UsesCuda(options), threads);
  for (const DecodeBenchResult& result : results) {
    Json report = Report(options, model, result, probe, threads, peak_bytes);
    if (!options.csv.empty()) AppendCsv(options.csv, report);
    const std::optional<ProfileResult> profile = Profile(options, model, result);
    if (options.json) {
      if (profile) report["profile"] = ProfileJson(*profile);
      PrintJson(report);
    } else {
      PrintText(options, model, result, probe, peak_bytes);
      if (profile) Print(ProfileText(*profile, options.profile));
    }
    if (profile) WriteProfileChart(*profile, options.profile);
  }
}

}  // namespace

void AddBenchCommand(CLI::App& program) {
  auto options = std::make_shared<Options>();
  CLI::App* bench = program.add_subcommand("bench", "Measure speed");
  bench->require_subcommand(1);
  AddBenchTokenizeCommand(*bench);
  AddBenchConvCommand(*bench);
  CLI::App* command = bench->add_subcommand(
      "decode", "Speed of one sequence: prompt and decoding, and its share of memory bandwidth");
  AddModelOption(*command, options->model.model)->required();
  command->add_option("--prompt-tokens", options->bench.prompt_tokens, "Length of the prompt")
      ->check(CheckWholeNumber)
      ->capture_default_str();
  command->add_option("-n,--max-tokens", options->bench.max_tokens, "Tokens to decode")
      ->check(CheckWholeNumber)
      ->capture_default_str();
  command
      ->add_option("--batch", options->batches,
                   "Sequences decoded together; several numbers give "
                   "several reports")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--repeat", options->bench.repeat, "How often to measure")
      ->capture_default_str();
  command->add_option("--warmup", options->bench.warmup, "Runs before that, which do not count")
      ->capture_default_str();
  AddDeviceOptions(*command, options->model);
  AddProfileOptions(*command, options->profile);
  command->add_option("--csv", options->csv, "Append a row to this file");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options] { Run(*options); });
}

}  // namespace adder::cli
