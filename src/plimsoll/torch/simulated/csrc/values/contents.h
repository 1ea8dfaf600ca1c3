// The knowledge of the contents of one allocation, whichever storages lie in it: values, or a
// description of them, by ranges.
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

// The source of values, the most certain first.
enum class Source : std::uint8_t {
  computed,   // equal to those on a GPU
  random,     // drawn like a GPU's, from another generator
  assumed,    // drawn from a description, or computed from such values
  told,       // assumed values that the host has read
  described,  // there are no values
};

class Contents final : public ContentsOfAllocation {
 public:
  explicit Contents(std::size_t size);
  // Makes contents in host memory, which the host writes too. They are always values.
  Contents(std::size_t size, std::shared_ptr<std::byte[]> of_host);
  Contents(const Contents&) = delete;
  Contents& operator=(const Contents&) = delete;

  // A range of bytes with the same knowledge.
  struct Part {
    std::size_t end = 0;
    Source source = Source::described;
    Description description;
    c10::ScalarType type = c10::ScalarType::Byte;  // the type that was written
    bool is_unwritten = false;  // its description is that of any number of its type
    std::uint64_t series = 0;   // the series of its draws
    std::uint64_t first = 0;    // the number in the series of the part's first element
    std::uint64_t capture = 0;  // the capture that wrote it; 0 for none
    Origin origin;
  };

  [[nodiscard]] const std::vector<Part>& parts() const { return parts_; }
  [[nodiscard]] bool are_mapped() const { return are_mapped_; }
  // Returns the values of the whole storage; null if there is no room for them.
  [[nodiscard]] std::byte* memory() const { return memory_.get(); }
  [[nodiscard]] std::shared_ptr<std::byte[]> shared_memory() const { return memory_; }
  bool make_room(at::ScalarType type);
  void give_room_back();
  // Fills unwritten memory with zeros if a write lies in between: it may contain anything.
  void take_zeros(std::size_t begin, std::size_t end, at::ScalarType type);
  // Takes over another storage's contents, as far as both reach.
  void take_over(const Contents& other);
  // Sets the knowledge of the bytes from `begin` to the part's end.
  void write(std::size_t begin, const Part& part);
  // Cuts parts, so that one begins at this byte.
  void cut(std::size_t at, std::size_t item);
  std::vector<Part>& parts_for_writing() { return parts_; }

 private:
  std::size_t size_;
  bool are_mapped_ = false;
  std::shared_ptr<std::byte[]> memory_;
  std::vector<Part> parts_;
};

}  // namespace plimsoll::simulated
