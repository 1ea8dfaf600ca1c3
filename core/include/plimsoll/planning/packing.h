// Gives each of a program's blocks an offset in one area. The lifetimes of the blocks are known. No
// two blocks that are live at the same time overlap.
//
// No area can be smaller than the most bytes that are live at the same time. Finding the smallest
// area is NP-hard. Each block takes the lowest offset that is free for all of its lifetime. The
// order of the blocks decides how high the area gets, so several orders are tried, and the lowest
// area wins. If areas are equally low, the area whose top is used least wins. A block's use of the
// top is the number of its bytes there, multiplied by its lifetime. The orders are:
//
// - the largest block first
// - the longest life first
// - the block with the highest peak first: the peak is the most bytes that are live at the same
//   time during the block's life. If peaks are equal, the block with the longest life comes first.
// - the block with the highest peak first. If peaks are equal, the largest block comes first.
// - the block that is allocated first comes first
//
// If the best area is still higher than the most bytes that are live at the same time, more tries
// follow:
//
// - Blocks are stacked: each block lies on top of all placed blocks that are live at the same time.
//   The next block is the one that can lie lowest. There are four such orders. If several blocks
//   can lie equally low, the first order takes the block with the longest life, the second the most
//   bytes times life, the third the largest size, and the fourth the earliest allocation.
// - The best order of each kind is changed: in each try, the blocks that lay at the top of the
//   previous area move to the front.
//
// The time of a try grows with the square of the number of blocks: 50 ms for 10,000. Programs with
// many blocks get fewer tries, and no stacked order that would take seconds. All tries together
// take about 4 s at most for 10,000 blocks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plimsoll/base/units.h"

namespace plimsoll {

// The times from `begin` up to, but not including, `end`.
struct TimeSpan {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  [[nodiscard]] bool is_empty() const { return begin == end; }
  [[nodiscard]] std::uint32_t length() const { return end - begin; }
  [[nodiscard]] bool meets(const TimeSpan& other) const {
    return begin < other.end && other.begin < end;
  }
};

// A block and the times at which it is live. Two parts of its life are kept apart from `live`:
//
// - `carried`: the block was allocated in one pass through a repeated step, and is still live in
//   the next pass.
// - `entered`: the block was allocated before a repeated step began, and is still live in the
//   step's first pass.
//
// The `carried` part of one block never conflicts with the `entered` part of another, even at equal
// times: the first pass has no carried blocks, and later passes have no entered blocks.
struct TimedBlock {
  Bytes size = 0;
  TimeSpan live = {};
  // The times at which the block is live in the pass after the one that allocated it; may be empty.
  TimeSpan carried = {};
  // The times at which the block is live in the first pass through a later step that repeats; may
  // be empty.
  TimeSpan entered = {};
  [[nodiscard]] bool meets(const TimedBlock& other) const {
    return live.meets(other.live) || crosses(other) || other.crosses(*this) ||
           carried.meets(other.carried) || entered.meets(other.entered);
  }

 private:
  [[nodiscard]] bool crosses(const TimedBlock& other) const {
    return carried.meets(other.live) || entered.meets(other.live);
  }
};

struct Packing {
  std::vector<Bytes> offsets;  // the offset of each block
  Bytes height = 0;
};

[[nodiscard]] Packing pack(std::span<const TimedBlock> blocks);

}  // namespace plimsoll
