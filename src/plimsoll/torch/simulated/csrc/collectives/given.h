// What a rank gives to a collective: numbers where they are known, else what they are like.
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
  at::Tensor values;  // of the host, flat; undefined where only `known` says what they are like

  [[nodiscard]] std::int64_t bytes() const;
};

// What the collective's rank has in that tensor.
Given give(const at::Tensor& tensor);
// `count` elements from `first` on.
Given part_of(const Given& given, std::int64_t first, std::int64_t count);
// What comes out of a reduction over ranks.
Given reduced(const std::vector<Given>& of_ranks, c10d::ReduceOp::RedOpType how);
// Makes the tensor's elements those that were given. What is drawn for unknown ones is the same on
// all ranks that give the same `series`.
void take(const at::Tensor& tensor, const Given& given, std::uint64_t series);

// As bytes, which a process of the same program reads.
std::string encode(const std::vector<Given>& given);
std::vector<Given> decode(std::string_view bytes);

}  // namespace plimsoll::simulated
