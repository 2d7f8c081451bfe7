#include "cuda/device_memory.h"

#include "core/error.h"
#include "cuda/call_counts.h"
#include "cuda/cuda_call.h"

namespace adder::cuda {

void* DeviceAllocator::Take(size_t bytes) {
  void* data = nullptr;
  ++Calls().allocations;
  Check(cudaMalloc(&data, bytes), Concat("cudaMalloc of ", bytes, " bytes"));
  return data;
}

void DeviceAllocator::Give(void* data) {
  ++Calls().allocations;
  cudaFree(data);
}

void* PinnedAllocator::Take(size_t bytes) {
  void* data = nullptr;
  ++Calls().allocations;
  Check(cudaMallocHost(&data, bytes), Concat("cudaMallocHost of ", bytes, " bytes"));
  return data;
}

void PinnedAllocator::Give(void* data) {
  ++Calls().allocations;
  cudaFreeHost(data);
}

Stream::Stream() {
  Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
}

Stream::~Stream() { cudaStreamDestroy(stream_); }

void Stream::Synchronize() const {
  ++Calls().synchronizations;
  Check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

Event::Event(bool timing) {
  Check(cudaEventCreateWithFlags(&event_, timing ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreate");
}

Event::~Event() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

void Event::Record(const Stream& stream) const {
  Check(cudaEventRecord(event_, stream.get()), "cudaEventRecord");
}

void Event::HoldUp(const Stream& stream) const {
  Check(cudaStreamWaitEvent(stream.get(), event_), "cudaStreamWaitEvent");
}

void Event::Synchronize() const {
  ++Calls().event_waits;
  Check(cudaEventSynchronize(event_), "cudaEventSynchronize");
}

int64_t CapturedNodes(const Stream& stream) {
  cudaStreamCaptureStatus status{};
  cudaGraph_t graph = nullptr;
#if CUDART_VERSION >= 13000
  Check(cudaStreamGetCaptureInfo(stream.get(), &status, nullptr, &graph, nullptr, nullptr, nullptr),
        "cudaStreamGetCaptureInfo");
#else
  Check(cudaStreamGetCaptureInfo_v2(stream.get(), &status, nullptr, &graph, nullptr, nullptr),
        "cudaStreamGetCaptureInfo");
#endif
  size_t nodes = 0;
  if (status == cudaStreamCaptureStatusActive) {
    Check(cudaGraphGetNodes(graph, nullptr, &nodes), "cudaGraphGetNodes");
  }
  return static_cast<int64_t>(nodes);
}

Graph::~Graph() {
  if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
}

void Graph::Launch(const Stream& stream) const {
  Check(cudaGraphLaunch(executable_, stream.get()), "cudaGraphLaunch");
}

void Graph::Begin(const Stream& stream) {
  Check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
}

void Graph::Abandon(const Stream& stream) {
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream.get(), &graph);
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();
}

Graph Graph::End(const Stream& stream) {
  cudaGraph_t captured = nullptr;
  Check(cudaStreamEndCapture(stream.get(), &captured), "cudaStreamEndCapture");
  size_t nodes = 0;
  Graph graph;
  cudaError_t status = cudaGraphGetNodes(captured, nullptr, &nodes);
  if (status == cudaSuccess) status = cudaGraphInstantiate(&graph.executable_, captured, 0);
  cudaGraphDestroy(captured);
  Check(status, "cudaGraphInstantiate");
  graph.nodes_ = static_cast<int64_t>(nodes);
  return graph;
}

void Upload(void* to, const void* from, size_t bytes, const Stream& stream) {
  if (bytes == 0) return;
  ++Calls().copies;
  Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream.get()),
        "copying a batch's table");
}

}  // namespace adder::cuda
