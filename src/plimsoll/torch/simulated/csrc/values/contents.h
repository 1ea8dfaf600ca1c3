// The known contents of an allocation: for each range, values or a description. All storages over
// the allocation share these contents.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/memory.h"
#include "values/description.h"
#include "values/origin.h"

namespace plimsoll::simulated {

// The source of values; the most certain one is first.
enum class Source : std::uint8_t {
  computed,   // the same as on a GPU
  random,     // from a random generator, but other numbers than on a GPU
  assumed,    // drawn from a description, or computed from drawn values
  told,       // chosen when the host read them, and returned at later reads too
  described,  // there are no values, only a description
};

class Contents final : public ContentsOfAllocation {
 public:
  explicit Contents(std::size_t size);
  // Makes contents over `of_host`: host memory that is mapped for the device, so that both the host
  // and the device write it. Such contents always have values.
  Contents(std::size_t size, std::shared_ptr<std::byte[]> of_host);
  Contents(const Contents&) = delete;
  Contents& operator=(const Contents&) = delete;

  // A range of bytes that have one source, one description and one origin. It begins where the
  // previous part ends.
  struct Part {
    std::size_t end = 0;
    Source source = Source::described;
    Description description;
    c10::ScalarType type = c10::ScalarType::Byte;  // of the numbers that were written
    bool is_unwritten = false;                     // never written: the numbers may be anything
    std::uint64_t series = 0;                      // the random series from which values are drawn
    std::uint64_t first = 0;    // the position of the first element in the series
    std::uint64_t capture = 0;  // the capture whose CUDA graph wrote the part; 0 for none
    Origin origin;
  };

  [[nodiscard]] const std::vector<Part>& parts() const { return parts_; }
  [[nodiscard]] bool are_mapped() const { return are_mapped_; }
  // Returns the values of the whole allocation; null if there are none.
  [[nodiscard]] std::byte* memory() const { return memory_.get(); }
  [[nodiscard]] std::shared_ptr<std::byte[]> shared_memory() const { return memory_; }
  bool make_room(at::ScalarType type);
  void give_room_back();
  // Declares that bytes between `begin` and `end` are zeros if nothing was ever written there. On a
  // GPU such bytes may contain anything, so zeros are as good as other values.
  void take_zeros(std::size_t begin, std::size_t end, at::ScalarType type);
  // Copies the contents of another allocation. If the two allocations differ in size, copies only
  // as many bytes as the smaller allocation has.
  void take_over(const Contents& other);
  // Sets what is known of the bytes from `begin` to `part.end`.
  void write(std::size_t begin, const Part& part);
  // Splits the part that contains byte `at`, so that a part begins there.
  void cut(std::size_t at, std::size_t item);
  std::vector<Part>& parts_for_writing() { return parts_; }

 private:
  std::size_t size_;
  bool are_mapped_ = false;
  std::shared_ptr<std::byte[]> memory_;
  std::vector<Part> parts_;
};

}  // namespace plimsoll::simulated
