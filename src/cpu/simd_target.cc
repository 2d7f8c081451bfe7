#include "cpu/simd_target.h"

#include <cstdlib>
#include <mutex>

#include "core/error.h"
#include "cpu/cpu_executor.h"
#include "hwy/highway.h"

namespace adder {

std::vector<std::string> SimdTargets() {
  // What the machine offers, whatever the kernels are restricted to at the moment.
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
      result.push_back(hwy::TargetName(target));
    }
    return result;
  }();
  return names;
}

void UseSimdTarget(const std::string& name) {
  const std::vector<std::string> names = SimdTargets();
  hwy::SetSupportedTargetsForTest(0);  // 0: what the machine supports
  int64_t chosen = hwy::SupportedTargets();
  if (!name.empty()) {
    chosen = 0;
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
      if (name == hwy::TargetName(target)) chosen = target;
    }
    if (chosen == 0) {
      std::string list;
      for (const std::string& known : names) list += (list.empty() ? "" : ", ") + known;
      Fail("There is no SIMD target '", name, "' on this machine; it has: ", list, ".");
    }
    hwy::SetSupportedTargetsForTest(chosen);
  }
  hwy::GetChosenTarget().Update(chosen);
}

void UseSimdTargetFromEnvironment() {
  static const bool done = [] {
    const char* name = std::getenv("ADDER_SIMD");
    if (name != nullptr && name[0] != '\0') UseSimdTarget(name);
    return true;
  }();
  (void)done;
}

const char* CpuSimdTarget() {
  UseSimdTargetFromEnvironment();
  return hwy::TargetName(hwy::SupportedAndGeneratedTargets().front());
}

}  // namespace adder
