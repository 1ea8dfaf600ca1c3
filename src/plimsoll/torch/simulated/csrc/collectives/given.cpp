#include "collectives/given.h"

#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "device/memory.h"
#include "device/runtime.h"
#include "device/virtual.h"

namespace plimsoll::simulated {
namespace {

using RedOp = c10d::ReduceOp::RedOpType;

// Ranks exchange a tensor's values if the tensor is not larger than these limits. For a larger
// tensor, they exchange only a description. The first limit is for computed values. It is high
// because programs send pickled objects as tensors, and the receiver needs their exact bytes. The
// second limit is for values that plimsoll drew at random to fit a description. Such values tell
// the receiver no more than the description.
constexpr std::int64_t kMostComputedBytesGiven = std::int64_t{64} << 20;
constexpr std::int64_t kMostBytesGiven = std::int64_t{4} << 20;

struct GivenHead {
  Description description;
  std::int64_t count;
  std::uint8_t source;
  std::int8_t type;
  bool has_values;
};
static_assert(std::is_trivially_copyable_v<GivenHead>);

// Describes `share` times the sum of the ranks' elements. The bounds of the result follow from the
// bounds of each rank's elements.
Description described_sum(const std::vector<Given>& of_ranks, double share) {
  double low = 0;
  double high = 0;
  bool is_whole = true;
  for (const Given& given : of_ranks) {
    low += given.known.description.low * share;
    high += given.known.description.high * share;
    is_whole = is_whole && given.known.description.is_whole;
  }
  Description sum = Description::between(low, high);
  sum.is_whole = is_whole && share == 1;
  return sum;
}

Description described(const std::vector<Given>& of_ranks, RedOp how) {
  const auto ranks = static_cast<double>(of_ranks.size());
  if (how == RedOp::SUM) return described_sum(of_ranks, 1);
  if (how == RedOp::AVG) return described_sum(of_ranks, 1 / ranks);
  if (how != RedOp::MAX && how != RedOp::MIN) return Description::of_type(of_ranks[0].type);
  Description found = of_ranks[0].known.description;
  for (const Given& given : of_ranks) {
    const Description& other = given.known.description;
    found = how == RedOp::MAX ? Description::between(std::max(found.low, other.low),
                                                     std::max(found.high, other.high))
                              : Description::between(std::min(found.low, other.low),
                                                     std::min(found.high, other.high));
  }
  return found;
}

// Combines `one` with `into` by the reduction `how`, in place. Both are host tensors.
void fold(at::Tensor& into, const at::Tensor& one, RedOp how) {
  switch (how) {
    case RedOp::PRODUCT: into.mul_(one); return;
    case RedOp::MIN: into = at::minimum(into, one); return;
    case RedOp::MAX: into = at::maximum(into, one); return;
    case RedOp::BAND: into.bitwise_and_(one); return;
    case RedOp::BOR: into.bitwise_or_(one); return;
    case RedOp::BXOR: into.bitwise_xor_(one); return;
    default: into.add_(one);
  }
}

}  // namespace

std::int64_t Given::bytes() const {
  return count * static_cast<std::int64_t>(c10::elementSize(type));
}

Given give(const at::Tensor& tensor) {
  const WithContentsScope real;
  Given given;
  given.type = tensor.scalar_type();
  given.count = tensor.numel();
  if (tensor.is_cpu()) {
    if (is_virtual(tensor)) {
      given.known.description = Description::of_type(given.type);
    } else {
      given.known.source = Source::computed;
      given.values = tensor.detach().reshape({-1});
    }
    return given;
  }
  given.known = known_of(tensor);
  if (runtime().current_capture(tensor.device().index()) != 0 || !can_be_read(tensor)) return given;
  const bool is_computed = given.known.source == Source::computed;
  if (given.bytes() > (is_computed ? kMostComputedBytesGiven : kMostBytesGiven)) {
    if (is_computed) runtime().assume(runtime().name("torch.distributed"), kBeyondBudget);
    return given;
  }
  const at::Tensor values = read_values(tensor);
  if (!values.defined()) return given;
  given.values = values.reshape({-1});
  given.known.source = std::min(given.known.source, Source::assumed);
  return given;
}

Given part_of(const Given& given, std::int64_t first, std::int64_t count) {
  Given part = given;
  part.count = count;
  part.known.series = 0;
  if (given.values.defined()) part.values = given.values.narrow(0, first, count);
  return part;
}

Given reduced(const std::vector<Given>& of_ranks, c10d::ReduceOp::RedOpType how) {
  const WithContentsScope real;
  Given sum;
  sum.type = of_ranks[0].type;
  sum.count = of_ranks[0].count;
  sum.known.source = Source::computed;
  bool has_values = true;
  for (const Given& given : of_ranks) {
    has_values = has_values && given.values.defined();
    sum.known.source = std::max(sum.known.source, given.known.source);
  }
  if (!has_values) {
    sum.known = {Source::described, described(of_ranks, how)};
    return sum;
  }
  sum.values = of_ranks[0].values.clone();
  for (std::size_t rank = 1; rank < of_ranks.size(); ++rank) {
    fold(sum.values, of_ranks[rank].values, how);
  }
  if (how == RedOp::AVG) {
    sum.values = sum.values.div(static_cast<double>(of_ranks.size())).to(sum.type);
  }
  return sum;
}

void take(const at::Tensor& tensor, const Given& given, std::uint64_t series) {
  if (tensor.numel() == 0) return;
  const WithContentsScope real;
  if (tensor.is_cpu()) {
    if (given.values.defined() && !is_virtual(tensor)) {
      tensor.copy_(given.values.view(tensor.scalar_type()).reshape(tensor.sizes()));
    }
    return;
  }
  if (allocation_of(tensor) == nullptr) return;
  const at::Tensor values = given.values.defined() ? writable_values(tensor, true) : at::Tensor();
  if (values.defined()) {
    values.copy_(given.values.view(tensor.scalar_type()).reshape(values.sizes()));
    note_values(tensor, std::min(given.known.source, Source::assumed));
    return;
  }
  if (given.values.defined() && given.known.source == Source::computed) {
    runtime().assume(runtime().name("torch.distributed"), kBeyondBudget);
  }
  Known known = given.known;
  known.source = Source::described;
  known.series = series;
  known.first = 0;
  note_same(tensor, known);
}

std::string encode(const std::vector<Given>& given) {
  std::string bytes;
  for (const Given& one : given) {
    GivenHead head{};
    head.description = one.known.description;
    head.count = one.count;
    head.source = static_cast<std::uint8_t>(one.known.source);
    head.type = static_cast<std::int8_t>(one.type);
    head.has_values = one.values.defined();
    bytes.append(reinterpret_cast<const char*>(&head), sizeof head);
    if (!head.has_values || one.count == 0) continue;
    const at::Tensor values = one.values.contiguous();
    bytes.append(static_cast<const char*>(values.const_data_ptr()),
                 static_cast<std::size_t>(one.bytes()));
  }
  return bytes;
}

std::vector<Given> decode(std::string_view bytes) {
  const WithContentsScope real;
  std::vector<Given> given;
  while (bytes.size() >= sizeof(GivenHead)) {
    GivenHead head;
    std::memcpy(&head, bytes.data(), sizeof head);
    bytes.remove_prefix(sizeof head);
    Given one;
    one.known.source = static_cast<Source>(head.source);
    one.known.description = head.description;
    one.type = static_cast<at::ScalarType>(head.type);
    one.count = head.count;
    if (head.has_values) {
      const auto size = static_cast<std::size_t>(one.bytes());
      TORCH_CHECK(size <= bytes.size(), "a rank sent less than it said");
      one.values = at::empty({one.count}, at::TensorOptions().dtype(one.type));
      std::memcpy(one.values.mutable_data_ptr(), bytes.data(), size);
      bytes.remove_prefix(size);
    }
    given.push_back(std::move(one));
  }
  return given;
}

}  // namespace plimsoll::simulated
