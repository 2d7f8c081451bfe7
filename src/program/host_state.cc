#include "program/host_state.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <unordered_set>

#include "core/error.h"

namespace adder {
namespace {

constexpr int64_t kAlignFloats = 16;  // 64 bytes: a cache line, and the widest SIMD register
// Far beyond any context, and small enough that sizes computed from it stay inside int64.
constexpr int64_t kMaxPosition = int64_t{1} << 40;
constexpr char kMagic[8] = {'A', 'D', 'D', 'E', 'R', 'S', 'E', 'Q'};
constexpr uint32_t kVersion = 1;

// Zeroed floats on a 64-byte boundary.
class AlignedFloats {
 public:
  explicit AlignedFloats(int64_t size) : size_(static_cast<size_t>(size)) {
    data_ = static_cast<float*>(
        ::operator new (std::max<size_t>(size_, 1) * sizeof(float), std::align_val_t{64}));
    Clear();
  }
  ~AlignedFloats() { ::operator delete (data_, std::align_val_t{64}); }
  AlignedFloats(const AlignedFloats&) = delete;
  AlignedFloats& operator=(const AlignedFloats&) = delete;

  void Clear() { std::fill_n(data_, size_, 0.0f); }
  void CopyFrom(const AlignedFloats& other) { std::copy_n(other.data_, size_, data_); }
  float* data() { return data_; }
  const float* data() const { return data_; }
  size_t bytes() const { return size_ * sizeof(float); }

 private:
  size_t size_;
  float* data_;
};

// A 64-bit hash, eight bytes at a time. Each step is a bijection of the running value, so damage to
// any one word always changes the result. It guards against accidents, not against forgers.
class Hash {
 public:
  void Add(uint64_t word) {
    value_ = (value_ ^ word) * 0x9e3779b97f4a7c15u;
    value_ ^= value_ >> 29;
  }
  void Add(const std::byte* data, size_t size) {
    for (; size >= 8; data += 8, size -= 8) Add(Load(data, 8));
    if (size > 0) Add(Load(data, size));
  }
  uint64_t value() const { return value_; }

 private:
  static uint64_t Load(const std::byte* data, size_t size) {
    uint64_t word = 0;
    std::memcpy(&word, data, size);
    return word;
  }
  uint64_t value_ = 0x243f6a8885a308d3u;
};

// Identifies what an exported sequence can be imported into: names, places and shapes of all
// states. KV is exported in position order, so the page size does not matter.
uint64_t Fingerprint(const StateLayout& layout) {
  Hash hash;
  hash.Add(layout.recurrent.size());
  for (const RecurrentState& state : layout.recurrent) {
    hash.Add(static_cast<uint64_t>(state.block));
    hash.Add(static_cast<uint64_t>(state.mixer));
    hash.Add(state.name.size());
    hash.Add(reinterpret_cast<const std::byte*>(state.name.data()), state.name.size());
    for (int64_t dim : state.shape) hash.Add(static_cast<uint64_t>(dim));
    hash.Add(static_cast<uint64_t>(state.offset));
    hash.Add(static_cast<uint64_t>(state.size));
  }
  hash.Add(layout.kv.size());
  for (const KvState& kv : layout.kv) {
    hash.Add(static_cast<uint64_t>(kv.block));
    hash.Add(static_cast<uint64_t>(kv.mixer));
    hash.Add(static_cast<uint64_t>(kv.kv_heads));
    hash.Add(static_cast<uint64_t>(kv.head_dim));
    // Only where it differs, so that states exported before stay readable.
    if (!kv.has_values) hash.Add(uint64_t{0});
  }
  hash.Add(static_cast<uint64_t>(layout.recurrent_floats));
  return hash.value();
}

// What an exported sequence begins with; all numbers little-endian. The recurrent slot follows,
// then per KV state the keys of all positions and the values of all positions, then a hash of
// everything before it.
struct Header {
  char magic[8];
  uint32_t version;
  uint32_t mamba2_dtype;  // 0: f32, 1: f16, 2: bf16
  uint64_t fingerprint;
  int64_t position;
};
static_assert(sizeof(Header) == 32);

constexpr DType kMamba2DTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

uint32_t DTypeNumber(const StateLayout& layout) {
  const auto* found =
      std::find(std::begin(kMamba2DTypes), std::end(kMamba2DTypes), layout.mamba2_dtype);
  return static_cast<uint32_t>(found - std::begin(kMamba2DTypes));
}

int64_t PagesFor(int64_t positions, int64_t page_positions) {
  return (positions + page_positions - 1) / page_positions;
}

}  // namespace

struct HostState::Page {
  explicit Page(int64_t size) : floats(size) {}
  AlignedFloats floats;
};

struct HostState::Sequence {
  explicit Sequence(int64_t recurrent_floats) : recurrent(recurrent_floats) {}
  AlignedFloats recurrent;
  std::vector<std::shared_ptr<Page>> pages;
  int64_t position = 0;
};

HostState::HostState(StateLayout layout) : layout_(std::move(layout)) {
  if (layout_.page_positions <= 0) Fail("The state layout has KV pages of no positions.");
  for (const KvState& kv : layout_.kv) {
    kv_offsets_.push_back(page_floats_);
    const int64_t block = layout_.page_positions * (kv.key_width() + kv.value_width());
    page_floats_ += PagesFor(block, kAlignFloats) * kAlignFloats;
  }
}

HostState::~HostState() = default;

SequenceId HostState::Create() {
  auto sequence = std::make_unique<Sequence>(layout_.recurrent_floats);
  const SequenceId id = next_id_++;
  sequences_.emplace(id, std::move(sequence));
  return id;
}

void HostState::Free(SequenceId sequence) {
  Get(sequence);  // throws for an unknown id
  sequences_.erase(sequence);
}

void HostState::Reset(SequenceId sequence) {
  Sequence& state = Get(sequence);
  state.recurrent.Clear();
  state.pages.clear();
  state.position = 0;
}

SequenceId HostState::Copy(SequenceId sequence) {
  const Sequence& source = Get(sequence);
  auto copy = std::make_unique<Sequence>(layout_.recurrent_floats);
  copy->recurrent.CopyFrom(source.recurrent);
  copy->position = source.position;
  if (!layout_.kv.empty()) {
    // Pages that the source only reserved stay its own.
    const auto used =
        static_cast<std::ptrdiff_t>(PagesFor(source.position, layout_.page_positions));
    copy->pages.assign(source.pages.begin(), source.pages.begin() + used);
  }
  const SequenceId id = next_id_++;
  sequences_.emplace(id, std::move(copy));
  return id;
}

int64_t HostState::Position(SequenceId sequence) const { return Get(sequence).position; }

int64_t HostState::Bytes() const {
  size_t total = 0;
  std::unordered_set<const Page*> seen;
  for (const auto& [id, sequence] : sequences_) {
    total += sequence->recurrent.bytes();
    for (const auto& page : sequence->pages) {
      if (seen.insert(page.get()).second) total += page->floats.bytes();
    }
  }
  return static_cast<int64_t>(total);
}

void HostState::Reserve(SequenceId sequence, int64_t count) {
  Sequence& state = Get(sequence);
  if (count < 0 || count > kMaxPosition - state.position) {
    Fail("Cannot make room for ", count, " more tokens after position ", state.position,
         " of a sequence.");
  }
  if (layout_.kv.empty()) return;
  const int64_t last = PagesFor(state.position + count, layout_.page_positions);
  for (int64_t p = state.position / layout_.page_positions; p < last; ++p) {
    if (p >= static_cast<int64_t>(state.pages.size())) {
      state.pages.push_back(std::make_shared<Page>(page_floats_));
    } else if (state.pages[static_cast<size_t>(p)].use_count() > 1) {
      auto own = std::make_shared<Page>(page_floats_);
      own->floats.CopyFrom(state.pages[static_cast<size_t>(p)]->floats);
      state.pages[static_cast<size_t>(p)] = std::move(own);
    }
  }
}

void HostState::Advance(SequenceId sequence, int64_t count) { Get(sequence).position += count; }

float* HostState::Recurrent(SequenceId sequence, int index) {
  return Get(sequence).recurrent.data() + layout_.recurrent.at(static_cast<size_t>(index)).offset;
}

float* HostState::Keys(SequenceId sequence, int index, int64_t page) {
  return Get(sequence).pages.at(static_cast<size_t>(page))->floats.data() +
         kv_offsets_.at(static_cast<size_t>(index));
}

float* HostState::Values(SequenceId sequence, int index, int64_t page) {
  const KvState& kv = layout_.kv.at(static_cast<size_t>(index));
  return Keys(sequence, index, page) + layout_.page_positions * kv.key_width();
}

// Calls visit(floats, count) for every run of KV floats that lies contiguous in a page, in the
// order of the exported form.
template <class Visit>
void HostState::ForEachKvRun(const Sequence& sequence, Visit visit) const {
  for (size_t i = 0; i < layout_.kv.size(); ++i) {
    const int64_t keys = layout_.kv[i].key_width();
    for (const bool values : {false, true}) {
      const int64_t width = values ? layout_.kv[i].value_width() : keys;
      if (width == 0) continue;
      const int64_t offset = kv_offsets_[i] + (values ? layout_.page_positions * keys : 0);
      for (int64_t begin = 0; begin < sequence.position; begin += layout_.page_positions) {
        const int64_t count = std::min(layout_.page_positions, sequence.position - begin);
        const auto page = static_cast<size_t>(begin / layout_.page_positions);
        visit(sequence.pages[page]->floats.data() + offset, static_cast<size_t>(count * width));
      }
    }
  }
}

std::vector<std::byte> HostState::Export(SequenceId sequence) const {
  const Sequence& state = Get(sequence);
  const auto kv_bytes = static_cast<size_t>(state.position * layout_.kv_bytes_per_position());
  std::vector<std::byte> bytes(sizeof(Header) + state.recurrent.bytes() + kv_bytes +
                               sizeof(uint64_t));
  Header header{{}, kVersion, DTypeNumber(layout_), Fingerprint(layout_), state.position};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  std::byte* out = bytes.data();
  const auto append = [&out](const void* data, size_t size) {
    std::memcpy(out, data, size);
    out += size;
  };
  append(&header, sizeof(header));
  append(state.recurrent.data(), state.recurrent.bytes());
  ForEachKvRun(state, [&](const float* floats, size_t count) { append(floats, count * 4); });
  Hash hash;
  hash.Add(bytes.data(), bytes.size() - sizeof(uint64_t));
  const uint64_t sum = hash.value();
  append(&sum, sizeof(sum));
  return bytes;
}

SequenceId HostState::Import(std::span<const std::byte> bytes) {
  // Everything is checked before anything is allocated, so damaged bytes cost nothing.
  Header header{};
  if (bytes.size() < sizeof(header) + sizeof(uint64_t)) {
    Fail("Cannot restore a sequence: its state has ", bytes.size(),
         " bytes, which is less than a header.");
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) {
    Fail("Cannot restore a sequence: the bytes are not an exported sequence state.");
  }
  if (header.version != kVersion || header.mamba2_dtype >= std::size(kMamba2DTypes)) {
    Fail("Cannot restore a sequence: its state has format version ", header.version,
         "; this build reads version ", kVersion, ".");
  }
  if (header.mamba2_dtype != DTypeNumber(layout_)) {
    const char* name = StateDTypeName(kMamba2DTypes[header.mamba2_dtype]);
    Fail("Cannot restore a sequence: its Mamba-2 states were kept as ", name,
         ", and this model keeps them as ", StateDTypeName(layout_.mamba2_dtype),
         ". Load the model with --state-dtype ", name, ".");
  }
  if (header.fingerprint != Fingerprint(layout_)) {
    Fail("Cannot restore a sequence: its state belongs to a model with another state layout.");
  }
  if (header.position < 0 || header.position > kMaxPosition) {
    Fail("Cannot restore a sequence: its state names position ", header.position, ".");
  }
  const size_t payload = bytes.size() - sizeof(header) - sizeof(uint64_t);
  const auto slot = static_cast<size_t>(layout_.recurrent_bytes());
  const auto per_position = static_cast<size_t>(layout_.kv_bytes_per_position());
  const auto position = static_cast<size_t>(header.position);
  // Division instead of position * per_position, which a hostile position could overflow.
  const bool fits =
      payload >= slot && (per_position == 0 ? payload == slot
                                            : (payload - slot) % per_position == 0 &&
                                                  (payload - slot) / per_position == position);
  if (!fits) {
    Fail("Cannot restore a sequence: its state has ", bytes.size(),
         " bytes, which does not fit position ", header.position, " (", slot,
         " bytes of recurrent state and ", per_position, " bytes per position are expected).");
  }
  uint64_t stored = 0;
  std::memcpy(&stored, bytes.data() + bytes.size() - sizeof(stored), sizeof(stored));
  Hash hash;
  hash.Add(bytes.data(), bytes.size() - sizeof(stored));
  if (hash.value() != stored) {
    Fail("Cannot restore a sequence: its state is damaged (the checksum does not match).");
  }

  auto sequence = std::make_unique<Sequence>(layout_.recurrent_floats);
  sequence->position = header.position;
  const std::byte* in = bytes.data() + sizeof(header);
  const auto take = [&in](float* floats, size_t count) {
    std::memcpy(floats, in, count * sizeof(float));
    in += count * sizeof(float);
  };
  take(sequence->recurrent.data(), slot / sizeof(float));
  if (!layout_.kv.empty()) {
    for (int64_t p = 0; p < PagesFor(header.position, layout_.page_positions); ++p) {
      sequence->pages.push_back(std::make_shared<Page>(page_floats_));
    }
  }
  ForEachKvRun(*sequence, take);
  const SequenceId id = next_id_++;
  sequences_.emplace(id, std::move(sequence));
  return id;
}

HostState::Sequence& HostState::Get(SequenceId sequence) {
  return const_cast<Sequence&>(static_cast<const HostState*>(this)->Get(sequence));
}

const HostState::Sequence& HostState::Get(SequenceId sequence) const {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) {
    Fail("There is no sequence ", sequence, ": it was never created, or has been freed.");
  }
  return *found->second;
}

void RequireF32States(const StateLayout& layout, const char* backend) {
  if (layout.mamba2_dtype == DType::kF32) return;
  Fail(backend, " keeps states as f32 only; use --device cuda for --state-dtype ",
       StateDTypeName(layout.mamba2_dtype), ", or leave that out.");
}

}  // namespace adder
