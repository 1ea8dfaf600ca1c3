// Makes objects of one type from slabs, which are arrays of such objects. The address of an object
// never changes. Once enough slabs exist, nothing more is allocated on the heap.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace plimsoll {

template <typename T>
class ObjectPool {
 public:
  T* make() {
    T* const object = make_unset();
    *object = T{};
    return object;
  }
  // Does what `make` does, but a recycled object keeps the content that it had at `recycle`.
  T* make_unset() {
    if (free_.empty()) grow();
    T* const object = free_.back();
    free_.pop_back();
    return object;
  }
  void recycle(T* object) { free_.push_back(object); }

  // Calls function with every object of every slab, including recycled ones.
  template <typename Function>
  void for_each_slot(Function function) const {
    for (const auto& slab : slabs_) {
      for (std::size_t i = 0; i < kSlab; ++i) function(&slab[i]);
    }
  }

 private:
  static constexpr std::size_t kSlab = 256;

  void grow() {
    slabs_.push_back(std::make_unique<T[]>(kSlab));
    free_.reserve(slabs_.size() * kSlab);
    for (std::size_t i = kSlab; i-- > 0;) free_.push_back(&slabs_.back()[i]);
  }

  std::vector<std::unique_ptr<T[]>> slabs_;
  std::vector<T*> free_;
};

}  // namespace plimsoll
