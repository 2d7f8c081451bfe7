// Sequence state in device memory: recurrent slots and reference-counted KV pages.
//
// Everything happens on one stream, in order; nothing waits for the device but Export.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "cuda/device_memory.h"
#include "cuda/kernels/sequence_table.h"
#include "program/executor.h"
#include "program/host_state.h"
#include "program/program.h"

namespace adder::cuda {

// Where a mixer's states lie in a device slot, in floats. See kernels/mamba2.h: the conv window is
// a ring with one row more than the layout's.
struct RecurrentPlace {
  long long offset = 0;
};

class DeviceState {
 public:
  // `kv_bf16`: keys and values are kept as bf16, else f32.
  DeviceState(const Program& program, bool kv_bf16, const Stream& stream);
  ~DeviceState();

  SequenceId Create();
  void Free(SequenceId sequence);
  void Reset(SequenceId sequence);
  SequenceId Copy(SequenceId sequence);
  int64_t Position(SequenceId sequence) const;
  // The bytes of HostState, so that a state moves between backends. Waits for the device.
  // Precondition: nothing is deferred.
  std::vector<std::byte> Export(SequenceId sequence) const;
  SequenceId Import(std::span<const std::byte> bytes);
  // Bytes of slots and pages in use; a shared page counts once.
  int64_t Bytes() const;

  // Pages for `count` more positions, none of them shared. True when the sequence's page table
  // moved.
  bool Reserve(SequenceId sequence, int64_t count);
  void Advance(SequenceId sequence, int64_t count);
  // Whether Mamba-2 states lack tokens in memory (see kernels/mamba2_deferred.h), as far as the
  // host knows.
  bool Defers(SequenceId sequence) const;
  // From now on they have all tokens before the sequence's position.
  void MarkSettled(SequenceId sequence) const;
  // The sequence as kernels see it; valid until the next Reserve, Reset or Free.
  SequenceRun Run(SequenceId sequence, int row, int tokens) const;
  // A slot and a page table that padding of a batch may write to.
  SequenceRun ScratchRun(int row) const;

  // Offset of layout.recurrent[index] in a slot, in floats. Conv windows are rings with one row
  // more than the layout's: see kernels/mamba2.h.
  long long RecurrentOffset(int index) const {
    return recurrent_offsets_.at(static_cast<size_t>(index));
  }
  // Of a Mamba-2 state: offset of the ring of deferred tokens, in floats; negative: it has none.
  long long DeferredOffset(int index) const {
    return deferred_offsets_.at(static_cast<size_t>(index));
  }
  // Whether there are Mamba-2 states, and each of them has that ring.
  bool DefersAll() const { return defers_all_; }
  // Offset of layout.kv[index] in a page, in bytes.
  long long KvOffset(int index) const { return kv_offsets_.at(static_cast<size_t>(index)); }
  bool kv_bf16() const { return kv_bf16_; }
  DType mamba2_dtype() const { return program_.layout.mamba2_dtype; }

 private:
  struct Page;
  struct Sequence;
  class Pool;

  Sequence& Get(SequenceId sequence);
  const Sequence& Get(SequenceId sequence) const;
  std::shared_ptr<Page> NewPage();
  bool UploadPages(Sequence& sequence, size_t first);
  // Where a slot or a page is on its way between host and device.
  float* PinnedSlot() const;
  std::byte* PinnedPage() const;
  template <class Visit>
  void ForEachRecurrentRun(HostState& host, SequenceId id, int64_t position, Visit visit) const;

  const Program& program_;
  const bool kv_bf16_;
  const Stream& stream_;
  std::vector<long long> recurrent_offsets_;
  std::vector<long long> deferred_offsets_;
  bool defers_all_ = false;
  std::vector<bool> is_ring_;
  std::vector<long long> kv_offsets_;
  size_t slot_bytes_ = 0;
  size_t page_bytes_ = 0;
  std::unique_ptr<Pool> slots_;
  std::unique_ptr<Pool> pages_;
  DeviceMemory scratch_pages_;  // page table of the scratch run
  void* scratch_slot_ = nullptr;
  void* scratch_page_ = nullptr;
  mutable PinnedMemory pinned_slot_;
  mutable PinnedMemory pinned_page_;
  SequenceId next_id_ = 0;
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
};

}  // namespace adder::cuda
