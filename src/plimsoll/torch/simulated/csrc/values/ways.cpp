#include "values/ways.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "device/tensors.h"
#include "device/virtual.h"
#include "values/known.h"

namespace plimsoll::simulated {
namespace {

std::uint64_t number_of(std::string_view text) { return std::hash<std::string_view>()(text); }

std::uint64_t number_of(double value) {
  std::uint64_t bits = 0;
  static_assert(sizeof bits == sizeof value);
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Describes how plimsoll rewrites an operator as the operator `name`, so that equivalent conditions
// get the same origin. If `turns_operands`, the operands are negated. If `is_turned`, the result is
// negated. For example, `a and b` becomes `not (not a or not b)`: `name` is "logical_or", and both
// other fields are true.
struct Condition {
  std::string_view name;
  bool turns_operands = false;
  bool is_turned = false;
};

Condition condition_of(std::string_view name, bool is_truth) {
  if (name == "ge") return {"lt", false, true};
  if (name == "le") return {"gt", false, true};
  if (name == "ne") return {"eq", false, true};
  if (!is_truth) return {name};
  if (name == "logical_and" || name == "bitwise_and") return {"logical_or", true, true};
  if (name == "bitwise_or") return {"logical_or"};
  if (name == "bitwise_xor") return {"logical_xor"};
  if (name == "bitwise_not") return {"logical_not"};
  return {name};
}

// Hashes the parts of a computation, from its name to its operands, into an origin.
class Way {
 public:
  Way(std::string_view name, std::size_t result, at::ScalarType type)
      : way_(mixed(number_of(name), result * 256 + static_cast<std::uint64_t>(type))),
        state_(way_) {}

  void add(std::uint64_t number) {
    way_ = mixed(way_, number);
    state_ = mixed(state_, number);
  }

  // Adds a tensor. Returns false if its origin is unknown.
  bool add(const at::Tensor& tensor, bool is_turned, bool is_value) {
    if (!tensor.defined()) {
      add(1);
      return true;
    }
    const Origin origin = is_simulated(tensor) ? origin_of(tensor) : of_host(tensor);
    if (!origin.is_known()) return false;
    std::uint64_t form = static_cast<std::uint64_t>(tensor.scalar_type()) * 4 +
                         ((origin.is_turned != is_turned) ? 2 : 0) + (origin.is_places ? 1 : 0);
    for (const std::int64_t size : tensor.sizes())
      form = mixed(form, static_cast<std::uint64_t>(size));
    for (const std::int64_t stride : tensor.strides())
      form = mixed(form, static_cast<std::uint64_t>(stride));
    way_ = mixed(way_, mixed(origin.way, form));
    state_ = mixed(state_, mixed(origin.state,
                                 mixed(form, static_cast<std::uint64_t>(tensor.storage_offset()))));
    if (is_value) made_.ancestors |= origin.ancestors;
    made_.open = std::min(made_.open, origin.open);
    for (const Origin::Settled& each : origin.settled) made_.settle(each);
    return true;
  }

  [[nodiscard]] Origin origin(bool is_turned) const {
    Origin made = made_;
    made.way = way_;
    made.state = state_;
    made.is_turned = is_turned;
    made.ancestors |= ancestor_bit(way_);
    return made;
  }

 private:
  // Returns the origin of a small host tensor: its numbers identify it.
  static Origin of_host(const at::Tensor& tensor) {
    constexpr std::int64_t kMost = 16;
    if (!tensor.is_cpu() || is_virtual(tensor) || tensor.numel() > kMost || tensor.is_complex()) {
      return {};
    }
    const WithContentsScope real;
    const at::Tensor numbers = tensor.to(at::kDouble).contiguous();
    std::uint64_t all = 0;
    for (std::int64_t i = 0; i < numbers.numel(); ++i) {
      all = mixed(all, number_of(numbers.const_data_ptr<double>()[i]));
    }
    return origin_by_number(all);
  }

  std::uint64_t way_;
  std::uint64_t state_;
  Origin made_;
};

template <typename Each>
bool add_all(Way& way, const Each& each) {
  way.add(each.size());
  for (const auto value : each) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, double>) {
      way.add(number_of(value));
    } else {
      way.add(static_cast<std::uint64_t>(value));
    }
  }
  return true;
}

// Adds an argument. Returns false if plimsoll cannot identify the argument's value.
bool add_argument(Way& way, const c10::IValue& value, bool turns, bool is_value) {
  if (value.isTensor()) return way.add(value.toTensor(), turns, is_value);
  if (value.isNone()) return way.add(2), true;
  if (value.isBool()) return way.add(value.toBool() ? 4 : 3), true;
  if (value.isInt()) return way.add(static_cast<std::uint64_t>(value.toInt())), true;
  if (value.isDouble()) return way.add(number_of(value.toDouble())), true;
  if (value.isString()) return way.add(number_of(value.toStringView())), true;
  if (value.isDevice()) return true;
  if (value.isIntList()) return add_all(way, value.toIntVector());
  if (value.isDoubleList()) return add_all(way, value.toDoubleVector());
  if (value.isTensorList() || value.isOptionalTensorList()) {
    bool are_known = true;
    for (const c10::IValue& each : value.toListRef()) {
      are_known = are_known && add_argument(way, each, turns, is_value);
    }
    return are_known;
  }
  return false;
}

bool is_same_tensor(const Call& call, std::string_view name, const at::Tensor& of,
                    const at::Tensor& to) {
  const bool copies = name == "clone" || name == "contiguous" || name == "_to_copy";
  return copies && !call.info().is_in_place() && of.scalar_type() == to.scalar_type() &&
         of.sizes() == to.sizes();
}

}  // namespace

Origin origin_of_written(const Call& call, const Written& written) {
  const OperationInfo& info = call.info();
  std::string_view name = info.plain_name;
  if (info.is_random || info.has(kOnLists)) return new_origin();
  if (name.ends_with('_')) name.remove_suffix(1);
  const at::ScalarType type = written.tensor.scalar_type();
  const at::Tensor first = call.argument_count() != 0 ? call.tensor(0) : at::Tensor();
  const bool is_truth = first.defined() && type == at::kBool && first.scalar_type() == at::kBool;
  const Condition condition = condition_of(name, is_truth);
  if (first.defined() && is_simulated(first)) {
    Origin same = origin_of(first);
    if (is_truth && condition.name == "logical_not" && same.is_known()) {
      same.is_turned = !same.is_turned;
      return same;
    }
    if (is_same_tensor(call, name, first, written.tensor) && same.is_known()) return same;
  }
  Way way(condition.name, written.result, type);
  for (std::size_t i = 0; i < call.argument_count(); ++i) {
    if (info.is_written[i] && info.has(kOverwrites)) continue;
    // The later arguments of index and masked_select only select elements of the first argument.
    // So the result does not inherit the ancestors of the later arguments.
    const bool is_value = i == 0 || (name != "index" && name != "masked_select");
    if (!add_argument(way, call.argument(i), condition.turns_operands, is_value)) {
      return new_origin();
    }
  }
  return way.origin(condition.is_turned);
}

}  // namespace plimsoll::simulated
