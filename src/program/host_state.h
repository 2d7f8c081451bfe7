// Sequence state in host memory: recurrent slots and reference-counted KV pages. Used by the
// interpreter and the CPU executor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "model/state_layout.h"
#include "program/executor.h"

namespace adder {

class HostState {
 public:
  explicit HostState(StateLayout layout);
  ~HostState();

  const StateLayout& layout() const { return layout_; }

  // Each call below throws Error for an id that was never created or has been freed.
  SequenceId Create();
  void Free(SequenceId sequence);
  void Reset(SequenceId sequence);
  // The recurrent slot is copied, KV pages are shared until one of the two writes to them.
  SequenceId Copy(SequenceId sequence);
  int64_t Position(SequenceId sequence) const;
  // A header (magic, format version, dtype of Mamba-2 states, fingerprint of the layout, position),
  // the recurrent slot, the KV of every position, and a checksum.
  std::vector<std::byte> Export(SequenceId sequence) const;
  // Throws Error, with nothing changed, for anything but the bytes of an Export of the same layout.
  SequenceId Import(std::span<const std::byte> bytes);
  // Bytes of all slots and pages; a shared page counts once.
  int64_t Bytes() const;

  // Makes room for `count` more positions: allocates pages and unshares those to be written. After
  // this, pointers below stay valid until the next Reserve, Reset or Free of the sequence. A page
  // shared with a copy is written only after Reserve gave this sequence its own.
  void Reserve(SequenceId sequence, int64_t count);
  // Moves the position forward after `count` tokens were processed (reserved before).
  void Advance(SequenceId sequence, int64_t count);

  // layout().recurrent[index] of the sequence, its bits as floats where its dtype is another. On a
  // 64-byte boundary, as the layout's offsets are.
  float* Recurrent(SequenceId sequence, int index);
  // Keys, key_width() per position, of the page with positions
  // [page * page_positions, (page + 1) * page_positions) of layout().kv[index].
  float* Keys(SequenceId sequence, int index, int64_t page);
  float* Values(SequenceId sequence, int index, int64_t page);

 private:
  struct Page;
  struct Sequence;
  Sequence& Get(SequenceId sequence);
  const Sequence& Get(SequenceId sequence) const;
  template <class Visit>
  void ForEachKvRun(const Sequence& sequence, Visit visit) const;

  StateLayout layout_;
  std::vector<int64_t> kv_offsets_;  // floats from the start of a page to each KV state's keys
  int64_t page_floats_ = 0;
  SequenceId next_id_ = 0;
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
};

// Throws Error, naming the backend ("The interpreter"), for a layout with states that are not f32.
void RequireF32States(const StateLayout& layout, const char* backend);

}  // namespace adder
