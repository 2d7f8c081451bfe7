#include "measure/audit.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"
#include "measure/text_table.h"
#include "program/launch_bound.h"

namespace adder {
namespace {

constexpr double kNano = 1e-9;

// All that ran, by start.
std::vector<TracedWork> AllWork(const DeviceTrace& trace) {
  std::vector<TracedWork> all = trace.kernels;
  all.insert(all.end(), trace.memcpys.begin(), trace.memcpys.end());
  all.insert(all.end(), trace.memsets.begin(), trace.memsets.end());
  std::stable_sort(all.begin(), all.end(),
                   [](const TracedWork& a, const TracedWork& b) { return a.start < b.start; });
  return all;
}

// Each piece of work with the time it adds to those before.
struct Spans {
  std::vector<int64_t> own;  // nanoseconds
  int64_t busy = 0;
  int64_t wall = 0;
};
Spans SpansOf(const std::vector<TracedWork>& work) {
  Spans spans;
  if (work.empty()) return spans;
  int64_t end = work.front().start;
  for (const TracedWork& piece : work) {
    const int64_t own = std::max<int64_t>(0, piece.end - std::max(piece.start, end));
    spans.own.push_back(own);
    spans.busy += own;
    end = std::max(end, piece.end);
  }
  spans.wall = end - work.front().start;
  return spans;
}

int64_t CallsNamed(const DeviceTrace& trace, const std::set<std::string>& names) {
  int64_t sum = 0;
  for (const auto& [name, count] : trace.calls) sum += names.count(name) > 0 ? count : 0;
  return sum;
}

// Calls that wait without a record of a synchronisation, and calls that allocate.
const std::set<std::string> kWaitingCalls = {"cudaMemcpy", "cudaMemcpy2D", "cudaMemset",
                                             "cudaMemcpyToSymbol", "cudaMemcpyFromSymbol"};
const std::set<std::string> kAllocatingCalls = {"cudaMalloc",    "cudaMallocAsync", "cudaFree",
                                                "cudaFreeAsync", "cudaMallocHost",  "cudaHostAlloc",
                                                "cudaFreeHost",  "cudaHostRegister"};

std::string Number(double value) {
  return FixedDigits(value, value == static_cast<double>(static_cast<int64_t>(value)) ? 0 : 2);
}

void Histogram(const std::vector<TracedWork>& work, const Spans& spans, AuditReport& report) {
  std::map<std::string, AuditKernel> kernels;
  const auto steps = static_cast<double>(report.steps);
  for (size_t i = 0; i < work.size(); ++i) {
    AuditKernel& kernel = kernels[work[i].name];
    kernel.name = work[i].name;
    kernel.per_step += 1;  // of all steps, until all are counted
    kernel.seconds += static_cast<double>(spans.own[i]) * kNano / steps;
    if (spans.busy > 0) {
      kernel.share += static_cast<double>(spans.own[i]) / static_cast<double>(spans.busy);
    }
  }
  for (auto& [name, kernel] : kernels) {
    kernel.per_step /= steps;
    kernel.per_layer = kernel.per_step / static_cast<double>(report.layers);
    report.kernels.push_back(kernel);
  }
  std::stable_sort(
      report.kernels.begin(), report.kernels.end(),
      [](const AuditKernel& a, const AuditKernel& b) { return a.seconds > b.seconds; });
}

// The layer's bound for a lane of the step.
int64_t MostOfLayer(const Program& program, int64_t layer, const AuditInput& input) {
  const int64_t sequences = (input.batch + input.lanes - 1) / input.lanes;
  return MostLaunches(program, layer, !input.f32 && sequences <= kMostJoinedSequences);
}

AuditRule ChannelRule(const Program& program, const AuditInput& input, const AuditReport& report) {
  const AuditKernel* most = &report.kernels.front();
  for (const AuditKernel& kernel : report.kernels) {
    if (kernel.per_layer > most->per_layer) most = &kernel;
  }
  // What a layer's ops come to does not grow with its channels either.
  int64_t of_ops = kMostInstancesPerLayer;
  for (int64_t layer = 0; layer < report.layers; ++layer) {
    of_ops = std::max(of_ops, MostOfLayer(program, layer, input));
  }
  const int64_t allowed = of_ops * input.lanes;
  return {"no launches per channel", most->per_layer <= static_cast<double>(allowed),
          Concat(most->name, " runs most often, ", Number(most->per_layer),
                 " times per layer; at most ", allowed, " are allowed, and a layer has ",
                 FewestChannels(program), " channels")};
}

AuditRule WaitRule(const AuditReport& report) {
  return {"no host synchronisation", report.synchronizations_per_step == 0,
          Concat(Number(report.synchronizations_per_step), " per step; the host waits ",
                 Number(report.output_waits_per_step),
                 " times per step for the tokens of the step before, while the next runs")};
}

AuditRule AllocationRule(const AuditReport& report) {
  return {"no allocation", report.allocations_per_step == 0,
          Concat(Number(report.allocations_per_step), " per step")};
}

// `ran`: launches of all steps.
AuditRule LaunchRule(const Program& program, const AuditInput& input, int64_t ran,
                     AuditReport& report) {
  const std::vector<int64_t>& launches = input.launches;
  std::map<int64_t, int64_t> counts;
  int64_t sum = 0;
  for (size_t i = 0; i < launches.size(); ++i) {
    counts[i < program.ops.size() ? program.ops[i].layer : -1] += launches[i];
    sum += launches[i];
  }
  std::vector<std::string> faults;
  for (const auto& [layer, count] : counts) {
    if (layer >= 0) report.most_per_layer = std::max(report.most_per_layer, double(count));
    const int64_t most = MostOfLayer(program, layer, input) * input.lanes;
    if (count <= most) continue;
    faults.push_back(Concat(layer < 0 ? "outside of layers" : Concat("layer ", layer), ": ", count,
                            " launches, at most ", most, " are declared"));
  }
  // What was captured has to be what ran.
  if (ran != sum * report.steps) {
    faults.push_back(Concat("the step has ", sum, " launches, but ",
                            Number(static_cast<double>(ran) / static_cast<double>(report.steps)),
                            " ran"));
  }
  if (!faults.empty()) return {"launches within the declared bound", false, Joined(faults, "; ")};
  return {"launches within the declared bound", true,
          Concat("at most ", Number(report.most_per_layer), " per layer, ", counts[-1],
                 " outside of layers, ", sum, " per step")};
}

AuditRule BusyRule(const AuditReport& report) {
  return {"the GPU is busy", report.busy_share >= kLeastBusyShare,
          Concat(FixedDigits(100 * report.busy_share, 1), "% of the time; at least ",
                 FixedDigits(100 * kLeastBusyShare, 0), "% are asked for")};
}

}  // namespace

bool AuditReport::passed() const {
  return std::all_of(rules.begin(), rules.end(), [](const AuditRule& rule) { return rule.kept; });
}

int64_t FewestChannels(const Program& program) {
  int64_t fewest = 0;
  for (const Op& op : program.ops) {
    const auto* mamba = std::get_if<Mamba2Op>(&op.body);
    if (mamba == nullptr) continue;
    const int64_t channels = mamba->mixer.conv_channels();
    fewest = fewest == 0 ? channels : std::min(fewest, channels);
  }
  return fewest > 0 ? fewest : program.plan->hidden;
}

AuditReport Audit(const Program& program, const AuditInput& input) {
  const std::vector<TracedWork> work = AllWork(input.trace);
  if (input.steps < 1 || work.empty()) {
    Fail("The audit saw no work on the GPU; nothing can be said about it.");
  }
  if (input.launches.size() != program.ops.size() + 1) {
    Fail("The audit needs the launches of ", program.ops.size() + 1, " parts of a step and has ",
         input.launches.size(), ".");
  }
  AuditReport report;
  report.steps = input.steps;
  report.batch = input.batch;
  std::set<int64_t> layers;
  for (const Op& op : program.ops) layers.insert(op.layer);
  layers.erase(-1);
  report.layers = std::max<int64_t>(1, static_cast<int64_t>(layers.size()));
  const auto per_step = [&](int64_t count) {
    return static_cast<double>(count) / static_cast<double>(input.steps);
  };
  const Spans spans = SpansOf(work);
  Histogram(work, spans, report);
  report.launches_per_step = per_step(static_cast<int64_t>(work.size()));
  report.memcpys_per_step = per_step(static_cast<int64_t>(input.trace.memcpys.size()));
  report.host_copies_per_step = per_step(input.trace.host_copies);
  report.memsets_per_step = per_step(static_cast<int64_t>(input.trace.memsets.size()));
  report.synchronizations_per_step =
      per_step(input.trace.stream_synchronizations + input.trace.device_synchronizations +
               CallsNamed(input.trace, kWaitingCalls));
  report.output_waits_per_step = per_step(input.trace.event_synchronizations);
  report.allocations_per_step = per_step(CallsNamed(input.trace, kAllocatingCalls));

  report.step_seconds = input.step_seconds;
  report.traced_step_seconds = per_step(spans.wall) * kNano;
  if (spans.wall > 0) {
    report.busy_share = static_cast<double>(spans.busy) / static_cast<double>(spans.wall);
  }
  report.rules = {ChannelRule(program, input, report), WaitRule(report), AllocationRule(report),
                  LaunchRule(program, input,
                             static_cast<int64_t>(work.size()) - input.trace.host_copies, report),
                  BusyRule(report)};
  return report;
}

std::string AuditText(const AuditReport& report) {
  std::vector<std::vector<std::string>> rows{
      {"kernel", "per step", "per layer", "us per step", "share"}};
  for (const AuditKernel& kernel : report.kernels) {
    rows.push_back({kernel.name, Number(kernel.per_step), FixedDigits(kernel.per_layer, 2),
                    FixedDigits(kernel.seconds * 1e6, 1),
                    FixedDigits(100 * kernel.share, 1) + "%"});
  }
  std::string text = Concat(
      TextTable(rows), "\nsteps traced     ", report.steps, " of ", report.batch,
      report.batch == 1 ? " sequence" : " sequences", ", ", report.layers, " layers",
      "\nper step         ", Number(report.launches_per_step), " launches, of them ",
      Number(report.memcpys_per_step), " copies (", Number(report.host_copies_per_step),
      " asked for by the host) and ", Number(report.memsets_per_step), " fills",
      "\nhost per step    ", Number(report.synchronizations_per_step), " synchronisations, ",
      Number(report.output_waits_per_step), " waits for tokens, ",
      Number(report.allocations_per_step), " allocations", "\nstep             ",
      FixedDigits(report.traced_step_seconds * 1e6, 1), " us while traced, ",
      report.step_seconds > 0 ? FixedDigits(report.step_seconds * 1e6, 1) + " us otherwise, " : "",
      "GPU busy ", FixedDigits(100 * report.busy_share, 1), "%\n\n");
  for (const AuditRule& rule : report.rules) {
    text += Concat(rule.kept ? "kept    " : "BROKEN  ", rule.name, ": ", rule.finding, ".\n");
  }
  return text;
}

Json AuditJson(const AuditReport& report) {
  Json kernels = Json::array();
  for (const AuditKernel& kernel : report.kernels) {
    kernels.push_back({{"name", kernel.name},
                       {"instances_per_step", kernel.per_step},
                       {"instances_per_layer", kernel.per_layer},
                       {"seconds_per_step", kernel.seconds},
                       {"share", kernel.share}});
  }
  Json rules = Json::array();
  for (const AuditRule& rule : report.rules) {
    rules.push_back({{"name", rule.name}, {"kept", rule.kept}, {"finding", rule.finding}});
  }
  return {{"steps", report.steps},
          {"batch", report.batch},
          {"layers", report.layers},
          {"launches_per_step", report.launches_per_step},
          {"most_launches_per_layer", report.most_per_layer},
          {"step_seconds", report.step_seconds},
          {"traced_step_seconds", report.traced_step_seconds},
          {"gpu_busy_share", report.busy_share},
          {"memcpys_per_step", report.memcpys_per_step},
          {"host_copies_per_step", report.host_copies_per_step},
          {"memsets_per_step", report.memsets_per_step},
          {"synchronizations_per_step", report.synchronizations_per_step},
          {"output_waits_per_step", report.output_waits_per_step},
          {"allocations_per_step", report.allocations_per_step},
          {"kernels", std::move(kernels)},
          {"rules", std::move(rules)},
          {"passed", report.passed()}};
}

}  // namespace adder
