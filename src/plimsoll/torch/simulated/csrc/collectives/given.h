// A rank's contribution to a collective: numbers if they are known, otherwise their description.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/backends.h"
#include "values/known.h"

namespace plimsoll::simulated {

// The elements of one tensor, in the order of its dimensions.
struct Given {
  Known known;
  at::ScalarType type = at::kByte;
  std::int64_t count = 0;
  at::Tensor values;  // on the host, flat; undefined if only `known` describes them

  [[nodiscard]] std::int64_t bytes() const;
};

// Reads this rank's contribution from a tensor.
Given give(const at::Tensor& tensor);
// Returns `count` elements from `first` on.
Given part_of(const Given& given, std::int64_t first, std::int64_t count);
// Reduces the contributions of all ranks.
Given reduced(const std::vector<Given>& of_ranks, c10d::ReduceOp::RedOpType how);
// Writes the contribution to the tensor's elements. Unknown elements are drawn, equally on all
// ranks that pass the same `series`.
void take(const at::Tensor& tensor, const Given& given, std::uint64_t series);

// Encodes contributions as bytes for a process of the same program.
std::string encode(const std::vector<Given>& given);
std::vector<Given> decode(std::string_view bytes);

}  // namespace plimsoll::simulated
