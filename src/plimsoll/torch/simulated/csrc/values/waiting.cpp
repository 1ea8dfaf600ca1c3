#include "values/waiting.h"

#include <ATen/ops/full_like.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "device/memory.h"
#include "device/runtime.h"

namespace plimsoll::simulated {
namespace {

// plimsoll changes an unknown value after the program has read it this many times in a row, while
// the bytes in live blocks stayed the same (see Place). Programs of a few steps never see a change.
constexpr std::int64_t kPatience = 8;
// Some truth values depend on random draws alone, and one of the two outcomes is nearly certain.
// plimsoll changes such a value only after this many reads in a row.
constexpr std::int64_t kPatienceWithLuck = 64;
// After this many reads at a place, plimsoll changes the value even if memory grows. Memory grows,
// for example, while a program generates text.
constexpr std::int64_t kPatienceWhileGrowing = 1024;
// A loop with a bound ends by itself. So plimsoll leaves the integers and truth values that the
// loop reads unchanged at first. After this many reads in a row, plimsoll changes them, as in a
// loop without a bound.
constexpr std::int64_t kPatienceWithinBounds = 4096;
// Loops wait for a single number, or for one flag per element of a batch. plimsoll regards a tensor
// with more elements than this as data, and never changes it.
constexpr std::int64_t kMostElements = 256;
// After this many changes that did not end the loop, plimsoll asks its Python code whether to stop
// the program.
constexpr std::int64_t kMostChanges = 1000;

// The state of a place in the program that reads unknown values. A call stack identifies the place.
struct Place {
  std::int64_t reads = 0;
  std::int64_t alike = 0;  // consecutive reads with unchanged memory
  std::int64_t changes = 0;
  // The bytes in live blocks at each of the last two reads. If the bytes at a new read equal either
  // number, plimsoll regards memory as unchanged: a loop that swaps two buffers alternates between
  // two numbers.
  std::array<std::uint64_t, 2> live_bytes{};
  double open = 1;  // Origin::open of the value at the last read
  // These describe the tensor of the last read: the number of its allocation, the size of its
  // storage, and its offset in the storage.
  std::uint64_t serial = 0;
  std::size_t bytes = 0;
  std::int64_t offset = 0;
  at::Tensor first;             // the unchanged value, from which all changed values are computed
  std::optional<bool> is_open;  // whether the loop has no bound; empty: Python was not asked yet
  // Whether a condition at this place depends on the value; empty: Python was not asked yet.
  std::optional<bool> is_tested;
};

std::mutex mutex;
auto* const places = new std::unordered_map<std::uint32_t, Place>;

// Returns the factor for the next change. The first factors shrink the value towards zero. If that
// does not end the loop, and `may_grow` is true, the later factors make the value grow.
double factor(std::int64_t change, bool may_grow) {
  constexpr std::int64_t kShrinks = 48;
  constexpr std::int64_t kIsSteady = 16;
  constexpr std::int64_t kCycle = 96;
  const std::int64_t at = may_grow ? change % kCycle : std::min(change, kShrinks);
  if (at < kShrinks + kIsSteady) return std::exp2(-static_cast<double>(std::min(at, kShrinks)) - 1);
  return std::exp2(static_cast<double>(at - kShrinks - kIsSteady) + 1);
}

at::Tensor changed_truth(const at::Tensor& first, std::int64_t change) {
  // plimsoll returns a truth value this many times before it returns the opposite value. Some
  // programs have to see a value several times.
  constexpr std::int64_t kTurn = 3;
  const bool is_other = change / kTurn % 2 == 0;
  if (first.numel() == 1) return is_other ? first.logical_not() : first.clone();
  return at::full_like(first, is_other);
}

// Returns integers that replace those in `first`. They lie in the range that `of` describes. Most
// loops wait for one end of this range, such as a count of zero or the token that ends a text. So
// the first changes return an end.
at::Tensor changed_integer(const at::Tensor& first, const Description& of, std::int64_t change) {
  const bool is_bounded = std::isfinite(of.low) && std::isfinite(of.high) && !of.is_constant();
  const double low = is_bounded ? of.low : 0;
  const double most = std::exp2(std::min(8 * static_cast<double>(first.itemsize()) - 2, 62.0));
  const double grown = std::exp2(static_cast<double>(std::min<std::int64_t>(change, 30)));
  const double high = std::min(is_bounded ? of.high : grown, most);
  const bool is_chosen = of.spread == Description::Spread::chosen;
  switch (change % 8) {
    case 0: return at::full_like(first, is_chosen ? high : low);
    case 1: return at::full_like(first, low);
    case 2: return at::full_like(first, std::min(low + 1, high));
    case 3: return at::full_like(first, std::min(low + 2, high));
    case 4:
    case 5: return at::full_like(first, high);
    default: return first.clone();
  }
}

at::Tensor changed(const Place& place, const Description& description) {
  const at::ScalarType type = place.first.scalar_type();
  if (type == at::kBool) return changed_truth(place.first, place.changes);
  if (c10::isIntegralType(type, false)) {
    return changed_integer(place.first, description, place.changes);
  }
  // A large number that fits into half precision.
  constexpr double kMost = 60'000;
  const double by = factor(place.changes, place.is_open.value_or(false));
  const at::Tensor first = at::isReducedFloatingType(type) || c10::isFloat8Type(type)
                               ? place.first.to(at::kFloat)
                               : place.first;
  const at::Tensor made = first.mul(by);
  return (by > 1 && !made.is_complex() ? made.clamp(-kMost, kMost) : made).to(type);
}

// Returns whether to change the value. Floating-point numbers, such as losses, may change in any
// program. Integers and truth values steer the program, so they change only if it would loop for
// ever. This function calls Python, so it holds no lock during the call.
bool is_to_change(std::uint32_t stack, at::ScalarType type) {
  std::optional<bool> is_open;
  {
    const std::lock_guard lock(mutex);
    is_open = (*places)[stack].is_open;
  }
  if (!is_open) is_open = runtime().callbacks.is_in_open_loop();
  const std::lock_guard lock(mutex);
  Place& place = (*places)[stack];
  place.is_open = is_open;
  return *is_open || !c10::isIntegralType(type, /*includeBool=*/true) ||
         place.alike >= kPatienceWithinBounds;
}

// Returns whether a loop waits for the value, which means that the loop tests the value in a
// condition. A loop that only prints the value does not wait for it. This function calls Python, so
// it holds no lock during the call.
bool is_waited_for(std::uint32_t stack) {
  std::optional<bool> is_tested;
  {
    const std::lock_guard lock(mutex);
    const Place& place = (*places)[stack];
    if (!place.is_open.value_or(false) && place.alike < kPatienceWithinBounds) return false;
    is_tested = place.is_tested;
  }
  if (!is_tested) is_tested = runtime().callbacks.is_tested();
  const std::lock_guard lock(mutex);
  (*places)[stack].is_tested = is_tested;
  return *is_tested;
}

// Notes a read at `place`, and returns whether the program made progress since the last read there.
// Within the same allocation, a higher offset is progress. If the program now reads another
// allocation, a smaller storage is progress.
bool goes_on(Place& place, const at::Tensor& tensor) {
  const Allocation* const allocation = allocation_of(tensor);
  if (allocation == nullptr) return false;
  const Place last = place;
  place.serial = allocation->serial;
  place.bytes = tensor.storage().nbytes();
  place.offset = tensor.storage_offset();
  if (last.serial == 0) return false;
  if (last.serial == place.serial) return place.offset > last.offset;
  return place.bytes < last.bytes;
}

}  // namespace

at::Tensor as_in_a_healthy_run(const at::Tensor& tensor, const at::Tensor& values,
                               const Known& known, std::uint32_t operation) {
  const Description& description = known.description;
  const bool is_all_but_sure =
      values.scalar_type() == at::kBool && description.is_random() && !description.is_open();
  const std::int64_t patience = is_all_but_sure ? kPatienceWithLuck : kPatience;
  const std::uint32_t stack = runtime().recorder->capture_stack();
  if (stack == 0) return values;  // the thread runs no Python
  if (values.numel() == 0 || values.numel() > kMostElements) return values;
  const std::uint64_t live = runtime().device(tensor.device().index()).live_bytes;
  {
    const std::lock_guard lock(mutex);
    Place& place = (*places)[stack];
    if (goes_on(place, tensor)) return values;
    const auto& last = place.live_bytes;
    const bool is_as_before = place.reads != 0 && (live == last[0] || live == last[1]);
    const bool advances = known.origin.open < place.open;
    place.alike = is_as_before && !advances ? place.alike + 1 : 0;
    place.live_bytes = {live, last[0]};
    place.open = known.origin.open;
    ++place.reads;
    const bool is_like_first = place.first.defined() && place.first.sizes() == values.sizes() &&
                               place.first.scalar_type() == values.scalar_type();
    const bool is_repeated = place.alike >= patience || place.reads > kPatienceWhileGrowing;
    if (!is_repeated || !is_like_first) place.first = values.clone();
    if (!is_repeated) return values;
  }
  if (!is_to_change(stack, values.scalar_type())) return values;
  at::Tensor told;
  bool is_stuck = false;
  {
    const std::lock_guard lock(mutex);
    Place& place = (*places)[stack];
    told = changed(place, description);
    is_stuck = ++place.changes % kMostChanges == 0;
  }
  if (is_waited_for(stack)) runtime().assume(operation, kWaits);
  if (!is_stuck) return told;
  if (runtime().callbacks.waits_for_ever(stack)) runtime().end_program();
  return told;
}

}  // namespace plimsoll::simulated
