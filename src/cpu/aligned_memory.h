// Memory on cache-line boundaries.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>

namespace adder {

inline constexpr size_t kCacheLine = 64;

// An array of trivial elements that grows without keeping its contents. Its memory is not touched
// before it is written.
template <class T>
class Scratch {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // Room for `count` elements. Earlier pointers and contents are lost when it has to grow.
  T* Get(size_t count) {
    if (count > size_) {
      memory_.reset();
      memory_.reset(static_cast<T*>(
          ::operator new (std::max<size_t>(count, 1) * sizeof(T), std::align_val_t{kCacheLine})));
      size_ = count;
    }
    return memory_.get();
  }
  T* data() { return memory_.get(); }
  const T* data() const { return memory_.get(); }
  size_t bytes() const { return size_ * sizeof(T); }

 private:
  struct Delete {
    void operator()(T* pointer) const { ::operator delete (pointer, std::align_val_t{kCacheLine}); }
  };
  std::unique_ptr<T, Delete> memory_;
  size_t size_ = 0;
};

}  // namespace adder
