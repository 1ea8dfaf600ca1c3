// What is known of the contents of one allocation, whichever storages lie in it: values, or a
// description of them, by ranges.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "description.h"
#include "origin.h"

namespace plimsoll::simulated {

struct Allocation;

// Where values come from, the surest first.
enum class Source : std::uint8_t {
  computed,   // they are those that a GPU would have
  random,     // drawn as a GPU draws them, from another generator
  assumed,    // of what nobody knows: drawn from a description, or computed of such
  told,       // assumed, and the host was told so
  described,  // there are none
};

class Contents {
 public:
  explicit Contents(std::size_t size);
  Contents(const Contents&) = delete;
  Contents& operator=(const Contents&) = delete;

  // A range of bytes of which the same is known.
  struct Part {
    std::size_t end = 0;
    Source source = Source::described;
    Description description;
    c10::ScalarType type = c10::ScalarType::Byte;  // as it was written
    bool is_unwritten = false;  // its description is that of any number of its type
    std::uint64_t series = 0;   // what is drawn from
    std::uint64_t first = 0;    // the number in the series of the part's first element
    std::uint64_t capture = 0;  // in which it was written; 0 for none
    Origin origin;
  };

  [[nodiscard]] const std::vector<Part>& parts() const { return parts_; }
  // The values of the whole storage; null where there is no room for them.
  [[nodiscard]] std::byte* memory() const { return memory_.get(); }
  [[nodiscard]] std::shared_ptr<std::byte[]> shared_memory() const { return memory_; }
  bool make_room(at::ScalarType type);
  void give_room_back();
  // Memory that nobody wrote may hold anything: zeros, where something is written in between.
  void take_zeros(std::size_t begin, std::size_t end, at::ScalarType type);
  // Has what another storage holds, as far as both reach.
  void take_over(const Contents& other);
  // Says what is known of the bytes from `begin` to the part's end.
  void write(std::size_t begin, const Part& part);
  // Cuts parts, so that one begins there.
  void cut(std::size_t at, std::size_t item);
  std::vector<Part>& parts_for_writing() { return parts_; }

 private:
  std::size_t size_;
  std::shared_ptr<std::byte[]> memory_;
  std::vector<Part> parts_;
};

// All that follows may be called by several threads at a time.

// What is known of a tensor on a device, as a whole.
struct Known {
  Source source = Source::described;
  Description description;
  std::uint64_t series = 0;  // of a tensor that is drawn from one alone
  std::uint64_t first = 0;
  Origin origin;
};
Known known_of(const at::Tensor& tensor);
Source source_of(const at::Tensor& tensor);
Origin origin_of(const at::Tensor& tensor);
// How its elements were drawn, where they are random; what is known of them otherwise.
Description spread_of(const at::Tensor& tensor);

// Whether anything may be computed of it: its elements are there, or few enough to be drawn.
bool can_be_read(const at::Tensor& tensor);
// Its elements, drawn where they have no values: a tensor of the host, which nobody may write to;
// undefined where they are too many.
at::Tensor read_values(const at::Tensor& tensor);
// The same, to be written to: values are there, or are made. Undefined where there is no room.
at::Tensor writable_values(const at::Tensor& tensor, bool is_overwritten);

// Says where the elements come from that were written to the tensor's values.
void note_values(const at::Tensor& tensor, Source source);
// The same, where more is known of them: how they are spread, of which only few are looked at, and
// how they came about.
void note_values(const at::Tensor& tensor, Source source, const Known& known);
// Says what is known of elements that were written on the device alone.
void note_described(const at::Tensor& tensor, const Description& description);
// The same of bytes from there on, of a type that nobody knows.
void note_written(Allocation& allocation, std::size_t begin, std::size_t end);
// Makes the elements those that the host was told.
void note_told(const at::Tensor& tensor, const at::Tensor& values);
// Makes it what another one is, element by element: a copy.
void note_same(const at::Tensor& tensor, const Known& as);

// What a graph wrote to the storage, at a replay.
void note_again(const c10::StorageImpl& storage, std::size_t begin, const Contents::Part& part);
// Has in new memory what is known of the old.
void keep_contents(const Allocation& before, Allocation& after);

// A tensor of the host with what stands for values that nobody knows.
void fill_unknown(const at::Tensor& tensor);

}  // namespace plimsoll::simulated
