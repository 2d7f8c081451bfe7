// Files: whole-file reads and read-only memory maps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace adder {

// Reads a regular file whole. Throws Error when it cannot be read or is larger than `max_bytes`.
std::string ReadFile(const std::filesystem::path& path, uint64_t max_bytes = uint64_t{1} << 30);

// Writes a file whole through a temporary beside it, so that a reader never sees half of it. What
// exists and is no regular file (a device, a pipe) is written to and not replaced. Throws Error
// when it cannot be written.
void WriteFile(const std::filesystem::path& path, std::string_view contents);

// A read-only, private memory map of a regular file. Movable; unmaps on destruction.
class MappedFile {
 public:
  MappedFile() = default;
  // Throws Error when the file cannot be opened or mapped. An empty file maps to an empty span.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // Tells the kernel that the pages fully inside `range` are not needed for now. Their contents
  // stay readable (they are read from the file again); only resident memory shrinks.
  static void Release(std::span<const std::byte> range);

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace adder
