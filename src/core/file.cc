#include "core/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "core/error.h"

namespace adder {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(const std::filesystem::path& path)
      : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) Fail("Cannot open ", path.string(), ": ", std::strerror(errno), ".");
  }
  ~FileDescriptor() { close(fd_); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

uint64_t RegularFileSize(const FileDescriptor& file, const std::filesystem::path& path) {
  struct stat info {};
  if (fstat(file.get(), &info) != 0) {
    Fail("Cannot read ", path.string(), ": ", std::strerror(errno), ".");
  }
  if (!S_ISREG(info.st_mode)) Fail("Cannot read ", path.string(), ": it is not a regular file.");
  return static_cast<uint64_t>(info.st_size);
}

}  // namespace

std::string ReadFile(const std::filesystem::path& path, uint64_t max_bytes) {
  const FileDescriptor file(path);
  const uint64_t size = RegularFileSize(file, path);
  if (size > max_bytes) {
    Fail("Refusing to read ", path.string(), ": ", size,
         " bytes, the limit for this kind of file is ", max_bytes, ".");
  }
  std::string contents(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t got = read(file.get(), contents.data() + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) Fail("Cannot read ", path.string(), ": ", std::strerror(errno), ".");
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  contents.resize(done);
  return contents;
}

void WriteFile(const std::filesystem::path& path, std::string_view contents) {
  std::error_code error;
  const bool replaceable =
      !std::filesystem::exists(path, error) || std::filesystem::is_regular_file(path, error);
  const std::filesystem::path temporary = replaceable ? path.string() + ".partial" : path.string();
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out.write(contents.data(), static_cast<std::streamsize>(contents.size()));
    out.flush();
    if (!out) {
      const std::string reason = std::strerror(errno);
      if (replaceable) std::filesystem::remove(temporary, error);
      Fail("Cannot write ", path.string(), ": ", reason, ".");
    }
  }
  if (!replaceable) return;
  std::filesystem::rename(temporary, path, error);
  if (error) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    Fail("Cannot write ", path.string(), ": ", error.message(), ".");
  }
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const FileDescriptor file(path);
  size_ = RegularFileSize(file, path);
  if (size_ == 0) return;
  void* address = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) {
    Fail("Cannot map ", path.string(), ": ", std::strerror(errno), ".");
  }
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::Release(std::span<const std::byte> range) {
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(range.data()) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(range.data()) + range.size()) / page * page;
  if (end > begin) {
    // A failed hint costs memory only, so the result does not matter.
    (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
}

}  // namespace adder
