#include "cuda/device_state.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "core/dtype.h"
#include "core/error.h"
#include "cuda/call_counts.h"
#include "cuda/cuda_call.h"
#include "cuda/kernels/mamba2_deferred.h"

namespace adder::cuda {
namespace {

constexpr int64_t kAlignFloats = 64;  // 256 bytes
constexpr int64_t kMaxPosition = std::numeric_limits<int32_t>::max();
constexpr size_t kFirstPageTable = 64;  // pages a new sequence's table has room for

int64_t AlignedFloats(int64_t floats) {
  return (floats + kAlignFloats - 1) / kAlignFloats * kAlignFloats;
}

int64_t PagesFor(int64_t positions, int64_t page_positions) {
  return (positions + page_positions - 1) / page_positions;
}

// The row of a conv ring that holds the input which the layout's window has in row `row`: the
// window ends before `position`. Rows of positions before the beginning are zero in both.
int64_t RingRow(int64_t position, int64_t window_rows, int64_t row) {
  const int64_t ring_rows = window_rows + 1;
  return ((position - window_rows + row) % ring_rows + ring_rows) % ring_rows;
}

// Calls visit(host, at) for every key and value of the first `count` positions of a page: `host` is
// the element of HostState's page, `at` the index of the same element in the device's page, counted
// from the KV state's beginning.
template <class Visit>
void ForEachKvElement(HostState& host, SequenceId id, int index, int64_t page, int64_t count,
                      Visit visit) {
  const KvState& kv = host.layout().kv[static_cast<size_t>(index)];
  const int64_t page_positions = host.layout().page_positions;
  const int64_t half = page_positions * kv.kv_heads * kv.head_dim;
  for (const int64_t values : {0, 1}) {
    if (values && !kv.has_values) break;
    float* element = values ? host.Values(id, index, page) : host.Keys(id, index, page);
    for (int64_t slot = 0; slot < count; ++slot) {
      for (int64_t head = 0; head < kv.kv_heads; ++head) {
        const int64_t at = values * half + (head * page_positions + slot) * kv.head_dim;
        for (int64_t dim = 0; dim < kv.head_dim; ++dim) visit(*element++, at + dim);
      }
    }
  }
}

}  // namespace

// Pieces of one size, cut from larger allocations and reused.
class DeviceState::Pool {
 public:
  explicit Pool(size_t piece_bytes) : piece_bytes_(piece_bytes) {}

  void* Take() {
    if (free_.empty()) Grow();
    void* piece = free_.back();
    free_.pop_back();
    return piece;
  }
  void Give(void* piece) { free_.push_back(piece); }

 private:
  void Grow() {
    // Twice as many each time, within limits: few allocations, little waste.
    constexpr size_t kMostBytes = size_t{256} << 20;
    const size_t most = std::max<size_t>(1, kMostBytes / std::max<size_t>(piece_bytes_, 1));
    const size_t count = std::min(most, next_count_);
    next_count_ = std::min(most, 2 * next_count_);
    DeviceMemory block(count * piece_bytes_);
    for (size_t i = 0; i < count; ++i) free_.push_back(block.as<std::byte>() + i * piece_bytes_);
    blocks_.push_back(std::move(block));
  }

  const size_t piece_bytes_;
  size_t next_count_ = 4;
  std::vector<DeviceMemory> blocks_;
  std::vector<void*> free_;
};

struct DeviceState::Page {
  Page(Pool& from) : pool(from), data(from.Take()) {}
  ~Page() { pool.Give(data); }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  Pool& pool;
  void* data;
};

struct DeviceState::Sequence {
  explicit Sequence(Pool& slots) : pool(slots), slot(slots.Take()) {}
  ~Sequence() { pool.Give(slot); }
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;
  Pool& pool;
  void* slot;
  std::vector<std::shared_ptr<Page>> pages;
  DeviceMemory table;  // addresses of the pages
  int64_t position = 0;
  mutable int64_t settled = 0;  // see SequenceRun
};

DeviceState::DeviceState(const Program& program, bool kv_bf16, const Stream& stream)
    : program_(program), kv_bf16_(kv_bf16), stream_(stream) {
  const StateLayout& layout = program.layout;
  int64_t floats = 0;
  for (const RecurrentState& state : layout.recurrent) {
    recurrent_offsets_.push_back(floats);
    is_ring_.push_back(state.name == "conv" && state.shape.front() > 0);
    const int64_t size = is_ring_.back()
                             ? state.size / state.shape.front() * (state.shape.front() + 1)
                             : state.floats();
    floats += AlignedFloats(size);
  }
  deferred_offsets_.assign(layout.recurrent.size(), -1);
  bool writes_always = false;
  for (const Op& op : program.ops) {
    const auto* mamba = std::get_if<Mamba2Op>(&op.body);
    if (mamba == nullptr) continue;
    if (!DefersWrites(mamba->mixer.head_dim)) {
      writes_always = true;
      continue;
    }
    defers_all_ = true;
    const Mamba2& m = mamba->mixer;
    deferred_offsets_[static_cast<size_t>(mamba->ssm_state)] = floats;
    const DeferredRow row(static_cast<int>(m.heads), static_cast<int>(m.head_dim),
                          static_cast<int>(m.d_state), static_cast<int>(m.groups));
    floats += AlignedFloats(int64_t{kDeferredTokens} * row.floats);
  }
  defers_all_ = defers_all_ && !writes_always;
  slot_bytes_ = static_cast<size_t>(std::max(floats, kAlignFloats)) * sizeof(float);
  const size_t element = kv_bf16 ? 2 : 4;
  for (const KvState& kv : layout.kv) {
    kv_offsets_.push_back(static_cast<long long>(page_bytes_));
    page_bytes_ += static_cast<size_t>(
                       AlignedFloats(layout.page_positions * (kv.key_width() + kv.value_width()))) *
                   element;
  }
  slots_ = std::make_unique<Pool>(slot_bytes_);
  pages_ = std::make_unique<Pool>(page_bytes_);
  scratch_slot_ = slots_->Take();
  Check(cudaMemsetAsync(scratch_slot_, 0, slot_bytes_, stream_.get()), "cudaMemset");
  if (!layout.kv.empty()) {
    scratch_page_ = pages_->Take();
    scratch_pages_ = DeviceMemory(sizeof(void*));
    ++Calls().copies;
    Check(cudaMemcpyAsync(scratch_pages_.data(), &scratch_page_, sizeof(void*),
                          cudaMemcpyHostToDevice, stream_.get()),
          "cudaMemcpy");
  }
}

DeviceState::~DeviceState() = default;

SequenceId DeviceState::Create() {
  auto sequence = std::make_unique<Sequence>(*slots_);
  Check(cudaMemsetAsync(sequence->slot, 0, slot_bytes_, stream_.get()), "cudaMemset");
  const SequenceId id = next_id_++;
  sequences_.emplace(id, std::move(sequence));
  return id;
}

void DeviceState::Free(SequenceId sequence) {
  Get(sequence);
  sequences_.erase(sequence);
}

void DeviceState::Reset(SequenceId sequence) {
  Sequence& state = Get(sequence);
  Check(cudaMemsetAsync(state.slot, 0, slot_bytes_, stream_.get()), "cudaMemset");
  state.pages.clear();
  state.position = 0;
  state.settled = 0;
}

SequenceId DeviceState::Copy(SequenceId sequence) {
  const Sequence& source = Get(sequence);
  auto copy = std::make_unique<Sequence>(*slots_);
  ++Calls().copies;
  Check(cudaMemcpyAsync(copy->slot, source.slot, slot_bytes_, cudaMemcpyDeviceToDevice,
                        stream_.get()),
        "copying a sequence's state");
  copy->position = source.position;
  copy->settled = source.settled;
  const StateLayout& layout = program_.layout;
  if (!layout.kv.empty()) {
    const auto used = static_cast<std::ptrdiff_t>(PagesFor(source.position, layout.page_positions));
    copy->pages.assign(source.pages.begin(), source.pages.begin() + used);
    UploadPages(*copy, 0);
  }
  const SequenceId id = next_id_++;
  sequences_.emplace(id, std::move(copy));
  return id;
}

int64_t DeviceState::Position(SequenceId sequence) const { return Get(sequence).position; }

int64_t DeviceState::Bytes() const {
  size_t total = 0;
  std::unordered_set<const Page*> seen;
  for (const auto& [id, sequence] : sequences_) {
    total += slot_bytes_;
    for (const auto& page : sequence->pages) {
      if (seen.insert(page.get()).second) total += page_bytes_;
    }
  }
  return static_cast<int64_t>(total);
}

std::shared_ptr<DeviceState::Page> DeviceState::NewPage() {
  return std::make_shared<Page>(*pages_);
}

bool DeviceState::UploadPages(Sequence& sequence, size_t first) {
  bool moved = false;
  const size_t count = sequence.pages.size();
  if (count * sizeof(void*) > sequence.table.bytes()) {
    const size_t room = std::max(kFirstPageTable, 2 * count);
    // Kernels in flight may read the old table; freeing it waits for them.
    sequence.table = DeviceMemory(room * sizeof(void*));
    first = 0;
    moved = true;
  }
  std::vector<void*> addresses;
  for (size_t i = first; i < count; ++i) addresses.push_back(sequence.pages[i]->data);
  if (addresses.empty()) return moved;
  ++Calls().copies;
  Check(cudaMemcpyAsync(sequence.table.as<void*>() + first, addresses.data(),
                        addresses.size() * sizeof(void*), cudaMemcpyHostToDevice, stream_.get()),
        "copying a page table");
  return moved;
}

bool DeviceState::Reserve(SequenceId sequence, int64_t count) {
  Sequence& state = Get(sequence);
  if (count < 0 || count > kMaxPosition - state.position) {
    Fail("Cannot make room for ", count, " more tokens after position ", state.position,
         " of a sequence.");
  }
  const StateLayout& layout = program_.layout;
  if (layout.kv.empty()) return false;
  const int64_t last = PagesFor(state.position + count, layout.page_positions);
  size_t changed = std::numeric_limits<size_t>::max();
  for (int64_t p = state.position / layout.page_positions; p < last; ++p) {
    const auto index = static_cast<size_t>(p);
    if (index >= state.pages.size()) {
      state.pages.push_back(NewPage());
    } else if (state.pages[index].use_count() > 1) {
      std::shared_ptr<Page> own = NewPage();
      ++Calls().copies;
      Check(cudaMemcpyAsync(own->data, state.pages[index]->data, page_bytes_,
                            cudaMemcpyDeviceToDevice, stream_.get()),
            "copying a KV page");
      state.pages[index] = std::move(own);
    } else {
      continue;
    }
    changed = std::min(changed, index);
  }
  return changed < state.pages.size() && UploadPages(state, changed);
}

void DeviceState::Advance(SequenceId sequence, int64_t count) { Get(sequence).position += count; }

bool DeviceState::Defers(SequenceId sequence) const {
  const Sequence& state = Get(sequence);
  return state.settled < state.position;
}
void DeviceState::MarkSettled(SequenceId sequence) const {
  const Sequence& state = Get(sequence);
  state.settled = state.position;
}

SequenceRun DeviceState::Run(SequenceId sequence, int row, int tokens) const {
  const Sequence& state = Get(sequence);
  return {static_cast<float*>(state.slot),
          state.table.as<char*>(),
          static_cast<int>(state.position),
          row,
          tokens,
          static_cast<int>(state.settled)};
}

SequenceRun DeviceState::ScratchRun(int row) const {
  return {static_cast<float*>(scratch_slot_), scratch_pages_.as<char*>(), 0, row, 1, 0};
}

// Calls visit(host, device, floats) for every run of recurrent floats that lies contiguous both in
// HostState's slot and in the device's.
template <class Visit>
void DeviceState::ForEachRecurrentRun(HostState& host, SequenceId id, int64_t position,
                                      Visit visit) const {
  const StateLayout& layout = program_.layout;
  for (size_t i = 0; i < layout.recurrent.size(); ++i) {
    const RecurrentState& state = layout.recurrent[i];
    float* values = host.Recurrent(id, static_cast<int>(i));
    if (!is_ring_[i]) {
      visit(values, recurrent_offsets_[i], state.floats());
      continue;
    }
    const int64_t rows = state.shape.front();
    const int64_t channels = state.size / rows;
    for (int64_t row = 0; row < rows; ++row) {
      visit(values + row * channels,
            recurrent_offsets_[i] + RingRow(position, rows, row) * channels, channels);
    }
  }
}

float* DeviceState::PinnedSlot() const {
  if (pinned_slot_.bytes() == 0) pinned_slot_ = PinnedMemory(slot_bytes_);
  return pinned_slot_.as<float>();
}
std::byte* DeviceState::PinnedPage() const {
  if (pinned_page_.bytes() == 0) pinned_page_ = PinnedMemory(page_bytes_);
  return pinned_page_.as<std::byte>();
}

std::vector<std::byte> DeviceState::Export(SequenceId sequence) const {
  const Sequence& state = Get(sequence);
  const StateLayout& layout = program_.layout;
  HostState host(layout);
  const SequenceId id = host.Create();
  host.Reserve(id, state.position);
  const float* slot = PinnedSlot();
  ++Calls().copies;
  Check(
      cudaMemcpyAsync(PinnedSlot(), state.slot, slot_bytes_, cudaMemcpyDeviceToHost, stream_.get()),
      "copying a sequence's state");
  stream_.Synchronize();
  ForEachRecurrentRun(host, id, state.position, [&](float* to, int64_t from, int64_t count) {
    std::copy_n(slot + from, count, to);
  });
  for (size_t p = 0; p < state.pages.size(); ++p) {
    const int64_t begin = static_cast<int64_t>(p) * layout.page_positions;
    if (begin >= state.position) break;
    std::byte* page = PinnedPage();
    ++Calls().copies;
    Check(cudaMemcpyAsync(page, state.pages[p]->data, page_bytes_, cudaMemcpyDeviceToHost,
                          stream_.get()),
          "copying a KV page");
    stream_.Synchronize();
    const int64_t count = std::min(layout.page_positions, state.position - begin);
    for (size_t i = 0; i < layout.kv.size(); ++i) {
      const std::byte* from = page + kv_offsets_[i];
      ForEachKvElement(host, id, static_cast<int>(i), static_cast<int64_t>(p), count,
                       [&](float& element, int64_t at) {
                         element = LoadFloat(from, kv_bf16_ ? DType::kBF16 : DType::kF32,
                                             static_cast<size_t>(at));
                       });
    }
  }
  host.Advance(id, state.position);
  return host.Export(id);
}

SequenceId DeviceState::Import(std::span<const std::byte> bytes) {
  const StateLayout& layout = program_.layout;
  HostState host(layout);
  const SequenceId from = host.Import(bytes);
  const int64_t position = host.Position(from);
  if (position > kMaxPosition) Fail("Cannot restore a sequence: its state is too long.");
  const SequenceId id = Create();
  try {
    Reserve(id, position);
    Sequence& state = Get(id);
    float* slot = PinnedSlot();
    std::fill_n(slot, slot_bytes_ / sizeof(float), 0.0f);
    ForEachRecurrentRun(host, from, position, [&](const float* values, int64_t to, int64_t count) {
      std::copy_n(values, count, slot + to);
    });
    ++Calls().copies;
    Check(cudaMemcpyAsync(state.slot, slot, slot_bytes_, cudaMemcpyHostToDevice, stream_.get()),
          "copying a sequence's state");
    for (size_t p = 0; p < state.pages.size(); ++p) {
      const int64_t begin = static_cast<int64_t>(p) * layout.page_positions;
      const int64_t count = std::min(layout.page_positions, position - begin);
      std::byte* page = PinnedPage();
      std::fill_n(page, page_bytes_, std::byte{0});
      for (size_t i = 0; i < layout.kv.size(); ++i) {
        std::byte* to = page + kv_offsets_[i];
        ForEachKvElement(host, from, static_cast<int>(i), static_cast<int64_t>(p), count,
                         [&](const float& element, int64_t at) {
                           if (kv_bf16_) {
                             const uint16_t rounded = FloatToBF16(element);
                             std::memcpy(to + at * 2, &rounded, 2);
                           } else {
                             std::memcpy(to + at * 4, &element, 4);
                           }
                         });
      }
      ++Calls().copies;
      Check(cudaMemcpyAsync(state.pages[p]->data, page, page_bytes_, cudaMemcpyHostToDevice,
                            stream_.get()),
            "copying a KV page");
      stream_.Synchronize();
    }
    stream_.Synchronize();
    state.position = position;
    state.settled = position;
  } catch (...) {
    Free(id);
    throw;
  }
  return id;
}

DeviceState::Sequence& DeviceState::Get(SequenceId sequence) {
  return const_cast<Sequence&>(static_cast<const DeviceState*>(this)->Get(sequence));
}

const DeviceState::Sequence& DeviceState::Get(SequenceId sequence) const {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) {
    Fail("There is no sequence ", sequence, ": it was never created, or has been freed.");
  }
  return *found->second;
}

}  // namespace adder::cuda
