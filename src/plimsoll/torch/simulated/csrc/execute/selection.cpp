// Implements aten::nonzero, whose result's size depends on the tensor's values. Also implements
// plimsoll::likely and plimsoll::mostly, which declare how often certain values occur.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/nonzero.h>

#include <algorithm>
#include <cmath>

#include "device/memory.h"
#include "device/runtime.h"
#include "device/virtual.h"
#include "execute/kernels.h"
#include "values/conversion.h"
#include "values/known.h"

namespace plimsoll::simulated {
namespace {

using at::Tensor;

// Returns the bytes of cub's temporary storage for counting: a partial sum for each of 40 blocks on
// every multiprocessor.
std::size_t count_scratch(std::int64_t numel, int multiprocessors) {
  if (numel <= 4096) return 1;
  return (static_cast<std::size_t>(multiprocessors) * 40 * 4 + 255) / 256 * 256 + 255;
}

// Returns the bytes of cub's temporary storage for selecting elements. The storage has 8 bytes for
// the state of each tile, and further bytes for alignment.
std::size_t select_scratch(std::int64_t numel) {
  const std::size_t tiles = (static_cast<std::size_t>(numel) + 4223) / 4224 + 32;
  return (tiles * 8 + 255) / 256 * 256 + 256 + 255;
}

double longest(const Tensor& tensor) {
  std::int64_t most = 1;
  for (const std::int64_t size : tensor.sizes()) most = std::max(most, size);
  return static_cast<double>(most);
}

// Returns the expected number of nonzero elements. `of` describes the tensor's values: their bounds
// and how probable each value is.
std::int64_t expected_true(const Description& of, const Tensor& tensor) {
  const auto count = static_cast<double>(tensor.numel());
  if (of.is_constant()) return of.low != 0 ? tensor.numel() : 0;
  const Description truth = in_type(of, tensor.scalar_type(), at::kBool);
  if (truth.is_constant()) return truth.low != 0 ? tensor.numel() : 0;
  if (truth.is_random()) {
    return static_cast<std::int64_t>(expected_of_random(truth.mean * count, count));
  }
  if (unknown() != Unknown::balanced && truth.is_open()) {
    return unknown() == Unknown::most ? tensor.numel() : 0;
  }
  return static_cast<std::int64_t>(std::round(truth.mean * count));
}

// The elements that a mask or an index selects.
struct Selected {
  std::int64_t count = 0;
  Tensor places;  // the elements' indices; undefined if they are unknown
};

Selected select(const Tensor& self) {
  const std::uint32_t name = runtime().name("aten::nonzero");
  const Known known = known_of(self);
  if (known.source > Source::random && !known.description.is_constant()) {
    runtime().assume(name, known.description.is_random() ? kSizeOfRandom : kSizeOfUnknown);
  } else if (known.source == Source::random) {
    runtime().assume(name, kSizeOfRandom);
  }
  if (can_be_read(self)) {
    const WithContentsScope real;
    if (const Tensor values = read_values(self); values.defined()) {
      // at::nonzero reads the values twice, and another thread could change them in between. So
      // at::nonzero gets a clone.
      Tensor places = at::nonzero(values.clone());
      return {places.size(0), places};
    }
  }
  return {expected_true(known.description, self), {}};
}

// Implements aten::nonzero. If the tensor's values are known, the nonzero elements are counted.
// Otherwise their number is estimated.
Tensor nonzero(const Tensor& self) {
  check_access(self);
  const OperationScope scope(runtime().name("aten::nonzero"), Role::output);
  const c10::DeviceIndex index = self.device().index();
  runtime().synchronize(index);
  const DeviceScope device(index);
  const Source source = source_of(self);
  const auto [found, places] = select(self);
  // PyTorch counts the elements first, then writes their indices, one dimension after the other.
  const auto temporary = [](std::size_t bytes) {
    const OperationScope temporaries(runtime().name("aten::nonzero"), Role::temporary);
    return take_memory(bytes);
  };
  const bool is_empty = self.numel() == 0;
  const int multiprocessors = runtime().device(index).properties.multiprocessors;
  at::DataPtr count = is_empty ? at::DataPtr() : temporary(sizeof(int));
  if (!is_empty) temporary(count_scratch(self.numel(), multiprocessors));
  const std::int64_t sizes[] = {found, self.dim()};
  const std::int64_t strides[] = {1, std::max<std::int64_t>(found, 1)};
  const Tensor result = at::detail::empty_generic(
      sizes, device_allocator(), c10::DispatchKeySet(c10::DispatchKey::CUDA), at::kLong, {});
  result.unsafeGetTensorImpl()->set_sizes_and_strides(at::IntArrayRef(sizes),
                                                      at::IntArrayRef(strides));
  if (found != 0 && self.dim() != 0) temporary(select_scratch(self.numel()));
  if (result.numel() == 0) return result;
  if (const Tensor to = places.defined() ? writable_values(result, true) : Tensor(); to.defined()) {
    to.copy_(places);
    note_values(result, std::min(source, Source::assumed));
  } else {
    Known known;
    known.description = Description::between(0, longest(self) - 1);
    known.origin = origin_of(self);
    known.origin.is_places = true;
    note_same(result, known);
  }
  return result;
}

// plimsoll::likely: declares that a fraction `share` of a boolean tensor is true. Has an effect
// only if the values are unknown and depend on the program's data.
void likely(const Tensor& truth, double share) {
  const Known known = known_of(truth);
  const bool is_open = !known.description.is_constant() && !known.description.is_random();
  if (known.source >= Source::assumed && is_open) note_described(truth, Description::likely(share));
}

// plimsoll::mostly: declares that a fraction `share` of the numbers equals `at`. Has an effect only
// if plimsoll does not know the numbers.
//
// A simulation that looks for the program's highest memory use ignores `share`. It assumes that
// half of the numbers equal `at`, so that numbers equal to `at` and other numbers both occur. A
// simulation that looks for the lowest memory use ignores the whole declaration.
void mostly(const Tensor& numbers, double at, double share) {
  const Known known = known_of(numbers);
  if (known.source < Source::assumed || unknown() == Unknown::least) return;
  const double others = unknown() == Unknown::most ? 0.5 : 1 - share;
  note_described(numbers, join(known.description, Description::constant(at), others));
}

}  // namespace

void add_selecting_kernels(WrittenOut& kernels) {
  kernels.add("nonzero", TORCH_FN(nonzero));
  define("likely(Tensor truth, float share) -> ()", TORCH_FN(likely));
  define("mostly(Tensor numbers, float at, float share) -> ()", TORCH_FN(mostly));
}

}  // namespace plimsoll::simulated
