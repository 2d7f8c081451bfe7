#include "cuda/device_memory.h"

#include "core/error.h"
#include "cuda/cuda_call.h"

namespace adder::cuda {

void* DeviceAllocator::Take(size_t bytes) {
  void* data = nullptr;
  Check(cudaMalloc(&data, bytes), Concat("cudaMalloc of ", bytes, " bytes"));
  return data;
}

void DeviceAllocator::Give(void* data) { cudaFree(data); }

void* PinnedAllocator::Take(size_t bytes) {
  void* data = nullptr;
  Check(cudaMallocHost(&data, bytes), Concat("cudaMallocHost of ", bytes, " bytes"));
  return data;
}

void PinnedAllocator::Give(void* data) { cudaFreeHost(data); }

Stream::Stream() {
  Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
}

Stream::~Stream() { cudaStreamDestroy(stream_); }

void Stream::Synchronize() const { Check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

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

void Event::Synchronize() const { Check(cudaEventSynchronize(event_), "cudaEventSynchronize"); }

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

}  // namespace adder::cuda
