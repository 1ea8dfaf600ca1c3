// A rank's contribution to a collective: values if they are known, otherwise a description, such as
// the values' bounds.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/backends.h"
#include "values/known.h"

namespace plimsoll::simulated {

// A rank's contribution from one tensor. The elements are in row-major order, whatever the
// tensor's strides.
struct Given {
  Known known;
  at::ScalarType type = at::kByte;
  std::int64_t count = 0;
  at::Tensor values;  // on the host, flat; undefined if there is only a description

  [[nodiscard]] std::int64_t bytes() const;
};

// Makes the contribution of this rank from a tensor.
Given give(const at::Tensor& tensor);
// Returns `count` elements of a contribution, from `first` on.
Given part_of(const Given& given, std::int64_t first, std::int64_t count);
// Combines the contributions of all ranks, as an all-reduce does.
Given reduced(const std::vector<Given>& of_ranks, c10d::ReduceOp::RedOpType how);
// Writes a contribution to a tensor. Unknown elements get random values; ranks that pass the same
// `series` get the same values.
void take(const at::Tensor& tensor, const Given& given, std::uint64_t series);

// Converts contributions to bytes and back. The format need not be portable, because the sender and
// the receiver run the same program.
std::string encode(const std::vector<Given>& given);
std::vector<Given> decode(std::string_view bytes);

}  // namespace plimsoll::simulated
