// CUPTI asks for buffers, fills them with records on its own threads and hands them back: the
// callbacks below only take records over under a lock. Records come late: Begin and End flush.
#include "measure/cuda/cupti_trace.h"

#if __has_include(<cupti.h>)

#include <cuda_runtime_api.h>
#include <cupti.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "core/error.h"
#include "cuda/cuda_call.h"
#include "measure/cuda/shared_library.h"

namespace adder {
namespace {

constexpr size_t kBufferBytes = size_t{8} << 20;
constexpr size_t kBufferAlignment = 8;

struct TracedCall {
  CUpti_CallbackId id;
  int64_t start;
};
struct TracedSynchronization {
  CUpti_ActivitySynchronizationType type;
  int64_t start;
};
struct TracedCopy {
  TracedWork work;
  bool in_graph;
};

// What the callbacks gather; they know no object, so there is one for the process.
struct Records {
  std::mutex mutex;
  decltype(&cuptiActivityGetNextRecord) next = nullptr;
  std::vector<TracedWork> kernels;
  std::vector<TracedCopy> memcpys;
  std::vector<TracedWork> memsets;
  std::vector<TracedSynchronization> synchronizations;
  std::vector<TracedCall> calls;
  std::map<std::string, std::string> plain_names;

  void Clear() {
    kernels.clear();
    memcpys.clear();
    memsets.clear();
    synchronizations.clear();
    calls.clear();
  }

  void Take(const CUpti_Activity* activity) {
    switch (activity->kind) {
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        // The part that all versions of the record share.
        const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel9*>(activity);
        const char* full_name = kernel->name == nullptr ? "unnamed" : kernel->name;
        std::string& name = plain_names[full_name];
        if (name.empty()) name = PlainKernelName(full_name);
        kernels.push_back({name, Time(kernel->start), Time(kernel->end)});
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy5*>(activity);
        memcpys.push_back({{"memcpy", Time(copy->start), Time(copy->end)}, copy->graphNodeId != 0});
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMSET: {
        const auto* set = reinterpret_cast<const CUpti_ActivityMemset4*>(activity);
        memsets.push_back({"memset", Time(set->start), Time(set->end)});
        break;
      }
      case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: {
        const auto* wait = reinterpret_cast<const CUpti_ActivitySynchronization*>(activity);
        synchronizations.push_back({wait->type, Time(wait->start)});
        break;
      }
      case CUPTI_ACTIVITY_KIND_RUNTIME: {
        const auto* call = reinterpret_cast<const CUpti_ActivityAPI*>(activity);
        calls.push_back({call->cbid, Time(call->start)});
        break;
      }
      default:
        break;
    }
  }

  static int64_t Time(uint64_t time) { return static_cast<int64_t>(time); }
};

// Never destroyed: CUPTI may hand back buffers until the process has ended.
Records& AllRecords() {
  static Records& records = *new Records;
  return records;
}

void CUPTIAPI GiveBuffer(uint8_t** buffer, size_t* size, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;
}

void CUPTIAPI TakeBuffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  Records& records = AllRecords();
  const std::lock_guard lock(records.mutex);
  CUpti_Activity* activity = nullptr;
  while (valid > 0 && records.next(buffer, valid, &activity) == CUPTI_SUCCESS) {
    records.Take(activity);
  }
  std::free(buffer);
}

template <class Work>
void SortByStart(std::vector<Work>& work) {
  std::stable_sort(work.begin(), work.end(),
                   [](const Work& a, const Work& b) { return a.start < b.start; });
}

}  // namespace

class CuptiTrace::Library {
 public:
  Library()
      : library_("CUPTI, NVIDIA's profiling library,",
                 {"libcupti.so.13", "libcupti.so", "/usr/local/cuda/lib64/libcupti.so",
                  "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so"},
                 "It is part of the CUDA toolkit; name its folder in LD_LIBRARY_PATH.") {
    library_.Find("cuptiGetVersion", get_version_);
    library_.Find("cuptiGetResultString", result_string_);
    library_.Find("cuptiActivityRegisterCallbacks", register_callbacks_);
    library_.Find("cuptiActivityEnable", enable_);
    library_.Find("cuptiActivityDisable", disable_);
    library_.Find("cuptiActivityFlushAll", flush_all_);
    library_.Find("cuptiActivityGetNextRecord", AllRecords().next);
    library_.Find("cuptiGetTimestamp", get_timestamp_);
    library_.Find("cuptiGetCallbackName", callback_name_);
    uint32_t version = 0;
    Check(get_version_(&version), "cuptiGetVersion");
    if (version < CUPTI_API_VERSION) {
      Fail("CUPTI in ", library_.path(), " has the interface ", version, ", older than ",
           CUPTI_API_VERSION,
           ", which this build was made with; install the profiling library of a newer CUDA.");
    }
    Check(register_callbacks_(GiveBuffer, TakeBuffer), "cuptiActivityRegisterCallbacks");
    for (CUpti_ActivityKind kind : kKinds) Check(enable_(kind), "cuptiActivityEnable");
  }
  ~Library() {
    for (CUpti_ActivityKind kind : kKinds) disable_(kind);
    flush_all_(0);
  }

  void Begin() {
    Flush();
    const std::lock_guard lock(AllRecords().mutex);
    AllRecords().Clear();
    begin_ = Now();
  }

  DeviceTrace End() {
    const int64_t end = Now();
    Flush();
    Records& records = AllRecords();
    const std::lock_guard lock(records.mutex);
    const auto inside = [&](int64_t start) { return start >= begin_ && start <= end; };
    const auto take = [&](const std::vector<TracedWork>& from, std::vector<TracedWork>& to) {
      for (const TracedWork& work : from) {
        if (inside(work.start)) to.push_back(work);
      }
      SortByStart(to);
    };
    DeviceTrace trace;
    take(records.kernels, trace.kernels);
    take(records.memsets, trace.memsets);
    for (const TracedCopy& copy : records.memcpys) {
      if (!inside(copy.work.start)) continue;
      trace.memcpys.push_back(copy.work);
      trace.host_copies += copy.in_graph ? 0 : 1;
    }
    SortByStart(trace.memcpys);
    for (const TracedSynchronization& wait : records.synchronizations) {
      if (!inside(wait.start)) continue;
      if (wait.type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE) {
        ++trace.event_synchronizations;
      } else if (wait.type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE) {
        ++trace.stream_synchronizations;
      } else if (wait.type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE) {
        ++trace.device_synchronizations;
      }
    }
    for (const TracedCall& call : records.calls) {
      if (inside(call.start)) ++trace.calls[CallName(call.id)];
    }
    return trace;
  }

 private:
  static constexpr CUpti_ActivityKind kKinds[] = {
      CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION,
      CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL};

  void Check(CUptiResult result, const char* call) const {
    if (result == CUPTI_SUCCESS) return;
    const char* text = nullptr;
    result_string_(result, &text);
    Fail("CUPTI failed in ", call, ": ", text == nullptr ? "unknown error" : text,
         ". Another profiler may hold it, or the driver may keep profiling to administrators.");
  }

  void Flush() const {
    cuda::Check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    Check(flush_all_(0), "cuptiActivityFlushAll");
  }

  int64_t Now() const {
    uint64_t time = 0;
    Check(get_timestamp_(&time), "cuptiGetTimestamp");
    return Records::Time(time);
  }

  // "cudaGraphLaunch", without the number of the interface's version.
  std::string CallName(CUpti_CallbackId id) const {
    const char* text = nullptr;
    if (callback_name_(CUPTI_CB_DOMAIN_RUNTIME_API, id, &text) != CUPTI_SUCCESS || !text) {
      return Concat("call ", id);
    }
    const std::string name = text;
    const size_t version = name.rfind("_v");
    return version == std::string::npos ? name : name.substr(0, version);
  }

  const SharedLibrary library_;
  decltype(&cuptiGetVersion) get_version_ = nullptr;
  decltype(&cuptiGetResultString) result_string_ = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks_ = nullptr;
  decltype(&cuptiActivityEnable) enable_ = nullptr;
  decltype(&cuptiActivityDisable) disable_ = nullptr;
  decltype(&cuptiActivityFlushAll) flush_all_ = nullptr;
  decltype(&cuptiGetTimestamp) get_timestamp_ = nullptr;
  decltype(&cuptiGetCallbackName) callback_name_ = nullptr;
  int64_t begin_ = 0;
};

CuptiTrace::CuptiTrace() : library_(std::make_unique<Library>()) {}
CuptiTrace::~CuptiTrace() = default;
void CuptiTrace::Begin() { library_->Begin(); }
DeviceTrace CuptiTrace::End() { return library_->End(); }

}  // namespace adder

#else

#include "core/error.h"

namespace adder {

class CuptiTrace::Library {};

CuptiTrace::CuptiTrace() {
  Fail("This adder was built without CUPTI's headers, so it cannot trace the GPU; build it again ",
       "with a complete CUDA toolkit.");
}
CuptiTrace::~CuptiTrace() = default;
void CuptiTrace::Begin() {}
DeviceTrace CuptiTrace::End() { return {}; }

}  // namespace adder

#endif
