#include "program/host_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/error.h"

namespace adder {
namespace {

// A conv window [3, 10], an SSM state [2, 4, 3], two attention mixers of unlike widths and one
// without values; pages of 4 positions.
StateLayout TestLayout() {
  StateLayout layout;
  layout.recurrent.push_back({0, 0, "conv", {3, 10}, 0, 30});
  layout.recurrent.push_back({0, 0, "ssm", {2, 4, 3}, 32, 24});
  layout.recurrent_floats = 64;
  layout.kv.push_back({1, 0, 2, 3});
  layout.kv.push_back({2, 1, 1, 5});
  layout.kv.push_back({3, 0, 1, 7, false});
  layout.page_positions = 4;
  return layout;
}

// Writes a value that depends on everything into each float of one position.
void WritePosition(HostState& state, SequenceId id, int64_t position, float salt) {
  const int64_t page = position / state.layout().page_positions;
  const int64_t slot = position % state.layout().page_positions;
  for (int index = 0; index < 3; ++index) {
    const KvState& kv = state.layout().kv[static_cast<size_t>(index)];
    const int64_t width = kv.key_width();
    for (int64_t i = 0; i < width; ++i) {
      const float value = salt + static_cast<float>(position * 100 + index * 10 + i);
      state.Keys(id, index, page)[slot * width + i] = value;
      if (kv.has_values) state.Values(id, index, page)[slot * width + i] = -value;
    }
  }
}

void Append(HostState& state, SequenceId id, int64_t count, float salt) {
  state.Reserve(id, count);
  for (int64_t i = 0; i < count; ++i) WritePosition(state, id, state.Position(id) + i, salt);
  state.Recurrent(id, 0)[29] = salt;
  state.Recurrent(id, 1)[0] = salt + 1;
  state.Advance(id, count);
}

// The same with Mamba-2 states of 16 bits: 24 elements in 12 floats.
StateLayout NarrowLayout(DType dtype) {
  StateLayout layout = TestLayout();
  layout.mamba2_dtype = layout.recurrent[1].dtype = dtype;
  layout.recurrent_floats = 48;
  return layout;
}

TEST(HostState, NarrowStatesComeBackBitwise) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    HostState state(NarrowLayout(dtype));
    const SequenceId id = state.Create();
    Append(state, id, 3, 0.5f);
    // Any bits, those of NaNs too.
    std::vector<uint16_t> elements;
    for (int i = 0; i < 24; ++i) elements.push_back(static_cast<uint16_t>(0xff81u - 2741u * i));
    std::memcpy(state.Recurrent(id, 1), elements.data(), 48);
    const std::vector<std::byte> bytes = state.Export(id);
    // 12 + 10 + 7 floats a position; header and checksum.
    EXPECT_EQ(bytes.size(), size_t{32 + 48 * 4 + 3 * (12 + 10 + 7) * 4 + 8});
    const SequenceId imported = state.Import(bytes);
    EXPECT_EQ(std::memcmp(state.Recurrent(imported, 1), elements.data(), 48), 0);
    EXPECT_EQ(state.Export(imported), bytes);
  }
}

TEST(HostState, StatesOfAnotherDTypeAreAnError) {
  const auto exported = [](DType dtype) {
    HostState state(dtype == DType::kF32 ? TestLayout() : NarrowLayout(dtype));
    return state.Export(state.Create());
  };
  HostState state(NarrowLayout(DType::kF16));
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    try {
      state.Import(exported(dtype));
      FAIL();
    } catch (const Error& error) {
      const std::string advice = Concat("--state-dtype ", StateDTypeName(dtype), ".");
      EXPECT_NE(std::string(error.what()).find(advice), std::string::npos) << error.what();
    }
  }
  std::vector<std::byte> unknown = exported(DType::kF16);
  unknown[12] = std::byte{3};
  EXPECT_THROW(state.Import(unknown), Error);
  EXPECT_EQ(state.Bytes(), 0);
}

TEST(HostState, BackendsOfF32StatesRefuseOthers) {
  RequireF32States(TestLayout(), "The interpreter");
  try {
    RequireF32States(NarrowLayout(DType::kBF16), "The interpreter");
    FAIL();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("The interpreter"), std::string::npos) << message;
    EXPECT_NE(message.find("--state-dtype bf16"), std::string::npos) << message;
  }
}

TEST(HostState, NewSequencesAreZeroAndAligned) {
  HostState state(TestLayout());
  const SequenceId id = state.Create();
  EXPECT_EQ(state.Position(id), 0);
  for (int i = 0; i < 30; ++i) EXPECT_EQ(state.Recurrent(id, 0)[i], 0.0f);
  EXPECT_EQ(state.Recurrent(id, 1) - state.Recurrent(id, 0), 32);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(state.Recurrent(id, 1)) % 64, 0u);
  state.Reserve(id, 1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(state.Keys(id, 1, 0)) % 64, 0u);
}

TEST(HostState, KeysAndValuesDoNotOverlap) {
  HostState state(TestLayout());
  const SequenceId id = state.Create();
  Append(state, id, 9, 0.5f);
  EXPECT_EQ(state.Position(id), 9);
  // Position 7 is slot 3 of page 1.
  EXPECT_EQ(state.Keys(id, 0, 1)[3 * 6 + 2], 0.5f + 702);
  EXPECT_EQ(state.Values(id, 0, 1)[3 * 6 + 5], -(0.5f + 705));
  EXPECT_EQ(state.Keys(id, 1, 1)[3 * 5 + 4], 0.5f + 714);
  EXPECT_EQ(state.Values(id, 1, 2)[0], -(0.5f + 810));
}

TEST(HostState, CopiesSharePagesUntilOneWrites) {
  HostState state(TestLayout());
  const SequenceId original = state.Create();
  Append(state, original, 6, 0.0f);
  const int64_t slot_bytes = 64 * 4;
  // 4 positions x 12 floats; 40 floats, and 28, to multiples of 16.
  const int64_t page_bytes = (48 + 48 + 32) * 4;
  EXPECT_EQ(state.Bytes(), slot_bytes + 2 * page_bytes);
  const SequenceId copy = state.Copy(original);
  EXPECT_EQ(state.Position(copy), 6);
  EXPECT_EQ(state.Bytes(), 2 * slot_bytes + 2 * page_bytes);
  EXPECT_EQ(state.Keys(copy, 0, 1), state.Keys(original, 0, 1));

  Append(state, copy, 1, 0.25f);
  EXPECT_EQ(state.Bytes(), 2 * slot_bytes + 3 * page_bytes) << "only the page written is doubled";
  EXPECT_EQ(state.Keys(copy, 0, 0), state.Keys(original, 0, 0));
  EXPECT_NE(state.Keys(copy, 0, 1), state.Keys(original, 0, 1));
  EXPECT_EQ(state.Keys(copy, 0, 1)[1 * 6 + 3], 503.0f) << "position 5 came along";
  EXPECT_EQ(state.Keys(copy, 0, 1)[2 * 6 + 3], 603.25f);
  EXPECT_EQ(state.Keys(original, 0, 1)[2 * 6 + 3], 0.0f);
  EXPECT_EQ(state.Recurrent(original, 0)[29], 0.0f);
  EXPECT_EQ(state.Recurrent(copy, 0)[29], 0.25f);

  // Now the original is the only owner of its second page and writes in place.
  const float* page = state.Keys(original, 0, 1);
  Append(state, original, 1, 0.75f);
  EXPECT_EQ(state.Keys(original, 0, 1), page);
  EXPECT_EQ(state.Keys(copy, 0, 1)[2 * 6 + 3], 603.25f);
  state.Free(original);
  EXPECT_EQ(state.Keys(copy, 0, 0)[1 * 6 + 1], 101.0f);
  EXPECT_EQ(state.Bytes(), slot_bytes + 2 * page_bytes);
}

TEST(HostState, PagesOnlyReservedAreNotShared) {
  HostState state(TestLayout());
  const SequenceId original = state.Create();
  Append(state, original, 4, 0.0f);
  state.Reserve(original, 3);
  float* reserved = state.Keys(original, 0, 1);
  const SequenceId copy = state.Copy(original);
  state.Reserve(original, 3);
  EXPECT_EQ(state.Keys(original, 0, 1), reserved);
  state.Reserve(copy, 1);
  EXPECT_NE(state.Keys(copy, 0, 1), reserved);
}

TEST(HostState, ResetIsLikeNew) {
  HostState state(TestLayout());
  const SequenceId id = state.Create();
  Append(state, id, 5, 2.0f);
  state.Reset(id);
  EXPECT_EQ(state.Position(id), 0);
  EXPECT_EQ(state.Export(id), state.Export(state.Create()));
}

TEST(HostState, ExportAndImportKeepEverything) {
  HostState state(TestLayout());
  const SequenceId id = state.Create();
  Append(state, id, 7, 0.125f);
  const std::vector<std::byte> bytes = state.Export(id);
  EXPECT_EQ(bytes.size(), 32u + 64 * 4 + 7 * (12 + 10 + 7) * 4 + 8);

  StateLayout larger_pages = TestLayout();
  larger_pages.page_positions = 16;
  HostState other(larger_pages);
  const SequenceId imported = other.Import(bytes);
  EXPECT_EQ(other.Position(imported), 7);
  EXPECT_EQ(other.Keys(imported, 1, 0)[6 * 5 + 4], 0.125f + 614);
  EXPECT_EQ(other.Values(imported, 0, 0)[5 * 6 + 1], -(0.125f + 501));
  EXPECT_EQ(other.Recurrent(imported, 1)[0], 1.125f);
  EXPECT_EQ(other.Export(imported), bytes);
}

TEST(HostState, DamagedImportsAreErrors) {
  HostState state(TestLayout());
  const SequenceId id = state.Create();
  Append(state, id, 5, 0.5f);
  const std::vector<std::byte> bytes = state.Export(id);
  const int64_t held = state.Bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(state.Import(std::span(bytes).first(size)), Error) << size;
  }
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::vector<std::byte> damaged = bytes;
    damaged[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    EXPECT_THROW(state.Import(damaged), Error) << bit;
  }
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_THROW(state.Import(longer), Error);
  EXPECT_EQ(state.Bytes(), held) << "a failed import leaves no sequence";
}

TEST(HostState, HostilePositionsAreErrors) {
  for (StateLayout layout : {TestLayout(), StateLayout{}}) {
    HostState state(layout);
    const std::vector<std::byte> bytes = state.Export(state.Create());
    for (const int64_t position : {int64_t{-1}, int64_t{1} << 62, INT64_MAX, INT64_MIN}) {
      std::vector<std::byte> hostile = bytes;
      std::memcpy(hostile.data() + 24, &position, 8);
      try {
        state.Import(hostile);
        FAIL() << position;
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("position"), std::string::npos);
      }
    }
  }
}

TEST(HostState, AnotherLayoutIsAnError) {
  HostState state(TestLayout());
  const std::vector<std::byte> bytes = state.Export(state.Create());
  StateLayout swapped = TestLayout();
  swapped.recurrent[1].shape = {4, 2, 3};  // as many floats, laid out differently
  HostState other(swapped);
  try {
    other.Import(bytes);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("another state layout"), std::string::npos);
  }
}

TEST(HostState, UnknownSequencesAreErrors) {
  HostState state(TestLayout());
  EXPECT_THROW(state.Position(0), Error);
  const SequenceId id = state.Create();
  state.Free(id);
  EXPECT_THROW(state.Free(id), Error);
  EXPECT_THROW(state.Reset(id), Error);
  EXPECT_THROW(state.Copy(id), Error);
  EXPECT_THROW(state.Export(id), Error);
  EXPECT_NE(state.Create(), id) << "ids are not reused";
  EXPECT_THROW(state.Reserve(state.Create(), INT64_MAX), Error);
}

}  // namespace
}  // namespace adder
