// Owners of what CUDA hands out: memory, streams, events, graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace adder::cuda {

// How memory of a kind is taken and given back. Take throws Error when there is not enough.
struct DeviceAllocator {
  static void* Take(size_t bytes);
  static void Give(void* data);
};
struct PinnedAllocator {
  static void* Take(size_t bytes);
  static void Give(void* data);
};

// Owns memory that is not initialised.
template <class Allocator>
class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t bytes)
      : data_(bytes == 0 ? nullptr : Allocator::Take(bytes)), bytes_(bytes) {}
  ~Memory() {
    if (data_ != nullptr) Allocator::Give(data_);
  }
  Memory(Memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Memory of the device. Giving it back waits for the device.
using DeviceMemory = Memory<DeviceAllocator>;
// Page-locked memory of the host, which the device copies to and from without waiting.
using PinnedMemory = Memory<PinnedAllocator>;

// A stream that does not synchronise with the default stream.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  // Waits for everything that was put on the stream. Throws Error for what failed there.
  void Synchronize() const;

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  explicit Event(bool timing = false);
  ~Event();
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  cudaEvent_t get() const { return event_; }
  void Record(const Stream& stream) const;
  // What is put on the stream from now on waits for what was recorded.
  void HoldUp(const Stream& stream) const;
  void Synchronize() const;

 private:
  cudaEvent_t event_ = nullptr;
};

// Kernels, copies and whatever else the capture that is under way on `stream` has recorded so far.
int64_t CapturedNodes(const Stream& stream);

// A captured and instantiated graph.
class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(Graph&& other) noexcept
      : executable_(std::exchange(other.executable_, nullptr)),
        nodes_(std::exchange(other.nodes_, 0)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(executable_, other.executable_);
    std::swap(nodes_, other.nodes_);
    return *this;
  }

  // Records what `launches` puts on the stream.
  template <class Launches>
  static Graph Capture(const Stream& stream, Launches launches) {
    Begin(stream);
    try {
      launches();
    } catch (...) {
      Abandon(stream);
      throw;
    }
    return End(stream);
  }

  explicit operator bool() const { return executable_ != nullptr; }
  void Launch(const Stream& stream) const;
  // Kernels, copies and whatever else one launch runs.
  int64_t nodes() const { return nodes_; }

 private:
  static void Begin(const Stream& stream);
  static void Abandon(const Stream& stream);
  static Graph End(const Stream& stream);

  cudaGraphExec_t executable_ = nullptr;
  int64_t nodes_ = 0;
};

// Puts a copy of a few bytes to the device on the stream. Small enough that the driver takes the
// bytes at once: the host may change them afterwards.
void Upload(void* to, const void* from, size_t bytes, const Stream& stream);

}  // namespace adder::cuda
