// Judges how a backend decodes: what the GPU ran in some steps, held against rules.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"
#include "measure/device_trace.h"
#include "program/program.h"

namespace adder {

struct AuditInput {
  int64_t steps = 0;  // that the trace covers
  int64_t batch = 1;
  std::vector<int64_t> launches;  // per part of a step, see program/step_profile.h
  int64_t lanes = 1;              // see DecodeStream::Lanes
  bool f32 = false;               // activations throughout
  DeviceTrace trace;
  // From step to step without a tracer, to see how much tracing disturbs. Zero: not measured.
  double step_seconds = 0;
};

struct AuditKernel {
  std::string name;
  double per_step = 0;
  double per_layer = 0;  // per step, over the layers of the model
  double seconds = 0;    // per step
  double share = 0;      // of the time of all kernels, copies and fills
};

struct AuditRule {
  std::string name;
  bool kept = false;
  std::string finding;  // what was measured, against what
};

struct AuditReport {
  std::vector<AuditKernel> kernels;  // the longest first; memcpy and memset among them
  int64_t layers = 0;
  int64_t steps = 0;
  int64_t batch = 1;
  double launches_per_step = 0;    // kernels, copies and fills that ran
  double most_per_layer = 0;       // launches of the layer that has most
  double step_seconds = 0;         // from step to step, untraced; zero: not measured
  double traced_step_seconds = 0;  // the same while traced
  double busy_share = 0;
  double memcpys_per_step = 0;
  double host_copies_per_step = 0;  // of those, the ones outside the step's graph
  double memsets_per_step = 0;
  double synchronizations_per_step = 0;
  double output_waits_per_step = 0;
  double allocations_per_step = 0;
  std::vector<AuditRule> rules;

  bool passed() const;
};

// The time of a kernel is its end minus the later of its start and the end of what ran before, so
// that the times of kernels which overlap add up to the time in which any ran. The busy share is
// the part of the time from the first start to the last end in which anything ran.
//
// Rules, each for a lane of a step (DecodeStream::Lanes): no kernel runs once per channel (at most
// kMostInstancesPerLayer times per layer and step, or as often as MostLaunches allows a layer
// launches at all, if that is more);
// no call waits for a stream or the device, and none allocates; no layer runs more launches than
// MostLaunches (program/launch_bound.h) says; the GPU is busy for at least kLeastBusyShare. Throws
// Error when there is nothing to judge.
AuditReport Audit(const Program& program, const AuditInput& input);

inline constexpr int kMostInstancesPerLayer = 8;
inline constexpr double kLeastBusyShare = 0.95;

// Channels that the convolutions of a model have in one layer, the fewest; the width of the model
// where it has none.
int64_t FewestChannels(const Program& program);

std::string AuditText(const AuditReport& report);
Json AuditJson(const AuditReport& report);

}  // namespace adder
