#include "plimsoll/planning/packing.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include "plimsoll/planning/program_plan.h"

namespace plimsoll {
namespace {

using Order = std::vector<std::uint32_t>;  // block numbers in the order of packing

// Bounds the work of all tries: each try costs the square of the number of blocks.
constexpr std::uint64_t kMostWork = 2'000'000'000;
constexpr std::uint64_t kLeastTries = 2;
constexpr std::uint64_t kMostTries = 300;
// How many heights plimsoll may read to find one stacked order.
constexpr std::uint64_t kMostStackingWork = 200'000'000;
// Sizes are divided by this unit before they are multiplied by a lifetime. In bytes, the product
// may exceed 64 bits.
constexpr Bytes kUnit = ProgramPlan::kAlignment;

// Returns the end of the block that lives longest.
std::uint32_t end_of(std::span<const TimedBlock> blocks) {
  std::uint32_t end = 0;
  for (const TimedBlock& block : blocks) {
    end = std::max({end, block.live.end, block.carried.end, block.entered.end});
  }
  return end;
}

// The bytes that are live at each time, and their maximum within any span of time.
class Load {
 public:
  explicit Load(std::span<const TimedBlock> blocks) {
    const std::uint32_t end = end_of(blocks);
    std::vector<Bytes> live(end + 1, 0);
    std::vector<Bytes> carried = live;
    std::vector<Bytes> entered = live;
    for (const TimedBlock& block : blocks) {
      add(live, block.live, block.size);
      add(carried, block.carried, block.size);
      add(entered, block.entered, block.size);
    }
    for (std::vector<Bytes>* each : {&live, &carried, &entered}) {
      std::partial_sum(each->begin(), each->end(), each->begin());
    }
    for (std::size_t i = 0; i <= end; ++i) live[i] += std::max(carried[i], entered[i]);
    most_.push_back(std::move(live));
    for (std::size_t width = 1; 2 * width <= std::size_t{end} + 1; width *= 2) {
      const std::vector<Bytes>& half = most_.back();
      std::vector<Bytes> twice(half.size() - width);
      for (std::size_t i = 0; i < twice.size(); ++i) twice[i] = std::max(half[i], half[i + width]);
      most_.push_back(std::move(twice));
    }
  }

  // Returns the most bytes that are live at once. No packing can be lower than this.
  [[nodiscard]] Bytes peak() const { return std::ranges::max(most_.front()); }
  [[nodiscard]] Bytes most_during(const TimedBlock& block) const {
    return std::max(
        {most_during(block.live), most_during(block.carried), most_during(block.entered)});
  }

 private:
  // Adds the block's size where its span begins, and subtracts it where the span ends. A change may
  // wrap around below 0. The running sum of the changes wraps back.
  static void add(std::vector<Bytes>& changes, const TimeSpan& span, Bytes size) {
    changes[span.begin] += size;
    changes[span.end] -= size;
  }
  [[nodiscard]] Bytes most_during(const TimeSpan& span) const {
    if (span.is_empty()) return 0;
    const std::size_t level = std::bit_width(span.end - span.begin) - 1U;
    const std::vector<Bytes>& most = most_[level];
    return std::max(most[span.begin], most[span.end - (std::size_t{1} << level)]);
  }

  std::vector<std::vector<Bytes>> most_;  // [k][i]: the highest of the 2^k values from time i on
};

// Returns the lowest offset that is free for all of the block's lifetime.
Bytes lowest_fit(std::span<const TimedBlock> blocks, const Order& placed_by_offset,
                 const std::vector<Bytes>& offsets, const TimedBlock& block) {
  Bytes lowest = 0;
  for (const std::uint32_t other : placed_by_offset) {
    if (offsets[other] >= lowest + block.size) break;
    const Bytes end = offsets[other] + blocks[other].size;
    if (end > lowest && blocks[other].meets(block)) lowest = end;
  }
  return lowest;
}

Packing pack_in_order(std::span<const TimedBlock> blocks, const Order& order) {
  Packing packing{std::vector<Bytes>(blocks.size(), 0), 0};
  std::vector<Bytes>& offsets = packing.offsets;
  Order placed;
  placed.reserve(blocks.size());
  for (const std::uint32_t number : order) {
    const TimedBlock& block = blocks[number];
    offsets[number] = lowest_fit(blocks, placed, offsets, block);
    packing.height = std::max(packing.height, offsets[number] + block.size);
    const auto place = std::ranges::upper_bound(placed, offsets[number], {},
                                                [&](std::uint32_t each) { return offsets[each]; });
    placed.insert(place, number);
  }
  return packing;
}

// Holds a value for each time. Also keeps the maximum of each `kWidth` values, so that the maximum
// of a long span is found fast.
class Heights {
 public:
  explicit Heights(std::size_t times) : values_(times, 0), highest_(times / kWidth + 1, 0) {}
  [[nodiscard]] Bytes most(const TimeSpan& span) const {
    Bytes most = 0;
    for (std::size_t i = span.begin; i < span.end;) {
      const bool is_whole = i % kWidth == 0 && i + kWidth <= span.end;
      most = std::max(most, is_whole ? highest_[i / kWidth] : values_[i]);
      i += is_whole ? kWidth : 1;
    }
    return most;
  }
  // Returns about how many values `most` reads for a span of this length.
  [[nodiscard]] static std::uint64_t work(std::uint32_t length) {
    return length / kWidth + std::min<std::uint64_t>(length, kWidth);
  }
  void raise(const TimeSpan& span, Bytes height) {
    for (std::size_t i = span.begin; i < span.end; ++i) values_[i] = height;
    if (span.is_empty()) return;
    for (std::size_t k = span.begin / kWidth; k <= (span.end - 1) / kWidth; ++k) {
      highest_[k] = std::max(highest_[k], height);
    }
  }

 private:
  static constexpr std::size_t kWidth = 64;

  std::vector<Bytes> values_;
  std::vector<Bytes> highest_;
};

// The height of the stack of placed blocks at each time, in the first pass through a repeated step
// and in later passes. A new block lies on top of all blocks that are live at the same time.
class Stack {
 public:
  explicit Stack(std::size_t times) : first_(times), later_(times) {}
  [[nodiscard]] Bytes height_under(const TimedBlock& block) const {
    return std::max({first_.most(block.live), later_.most(block.live), later_.most(block.carried),
                     first_.most(block.entered)});
  }
  void place(const TimedBlock& block, Bytes offset) {
    const Bytes top = offset + block.size;
    first_.raise(block.live, top);
    later_.raise(block.live, top);
    later_.raise(block.carried, top);
    first_.raise(block.entered, top);
  }

 private:
  Heights first_;
  Heights later_;
};

// Stacks the blocks, and returns the order in which they were stacked. The next block is always the
// one that can lie lowest. If several can lie equally low, the block with the largest key comes
// first. Returns an empty order if the work would be more than `kMostStackingWork`.
template <typename Key>
Order stacking_order(std::span<const TimedBlock> blocks, Key key) {
  using Ranked = std::tuple<Bytes, Bytes, std::uint32_t>;  // height below, least key first, number
  std::priority_queue<Ranked, std::vector<Ranked>, std::greater<>> waiting;
  for (std::uint32_t i = 0; i < blocks.size(); ++i) waiting.emplace(0, ~key(blocks[i]), i);
  Stack stack(end_of(blocks));
  Order order;
  std::uint64_t work = 0;
  while (!waiting.empty()) {
    const auto [height, rank, number] = waiting.top();
    waiting.pop();
    work += Heights::work(blocks[number].live.length());
    if (work > kMostStackingWork) return {};
    // Heights only grow. If the height below this block has grown, the block waits again.
    const Bytes now = stack.height_under(blocks[number]);
    if (now > height) {
      waiting.emplace(now, rank, number);
      continue;
    }
    stack.place(blocks[number], now);
    order.push_back(number);
  }
  return order;
}

// Tries orders of the blocks, keeps the best packing, and limits the number of tries.
class Tries {
 public:
  explicit Tries(std::span<const TimedBlock> blocks) : blocks_(blocks), load_(blocks) {
    const std::uint64_t work = std::max<std::uint64_t>(blocks.size() * blocks.size(), 1);
    left_ = std::clamp<std::uint64_t>(kMostWork / work, kLeastTries, kMostTries);
  }

  [[nodiscard]] const Load& load() const { return load_; }
  // Packs the blocks in the order of their keys, beginning with the largest key. Blocks with equal
  // keys are packed in the order in which they are allocated.
  template <typename Key>
  void try_by(Key key) {
    if (left_ == 0) return;
    Order order(blocks_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {},
                             [&](std::uint32_t each) { return blocks_[each].live.begin; });
    std::ranges::stable_sort(order, std::ranges::greater{},
                             [&](std::uint32_t each) { return key(blocks_[each]); });
    Packing packing = try_order(order);
    const std::pair rank{packing.height, top_use(packing)};
    if (best_.offsets.empty() || rank < best_rank_) keep(std::move(packing), order, rank);
  }
  // Packs the blocks in the order in which they can be stacked, see `stacking_order`.
  template <typename Key>
  void try_stacked_by(Key key) {
    if (is_done()) return;
    const Order order = stacking_order(blocks_, key);
    if (order.empty()) return;
    Packing packing = try_order(order);
    if (packing.height < best_.height) keep(std::move(packing), order, {packing.height, 0});
  }
  [[nodiscard]] std::uint64_t left() const { return left_; }
  [[nodiscard]] const Order& best_order() const { return best_order_; }
  // Tries to reduce the height of the packing of this order, with at most this number of tries.
  // After each try, moves the blocks near the top of the packing to the front of the order.
  void lower_top(Order order, std::uint64_t most_tries) {
    for (; most_tries > 0 && !is_done(); --most_tries) {
      const Packing packing = try_order(order);
      if (packing.height < best_.height) keep(packing, order, {packing.height, 0});
      const Bytes top = packing.height - (packing.height - load_.peak()) / 2;
      std::ranges::stable_partition(order, [&](std::uint32_t each) {
        return packing.offsets[each] + blocks_[each].size > top;
      });
    }
  }
  [[nodiscard]] Packing take() { return std::move(best_); }

 private:
  [[nodiscard]] bool is_done() const { return left_ == 0 || best_.height == load_.peak(); }
  [[nodiscard]] Packing try_order(const Order& order) {
    --left_;
    return pack_in_order(blocks_, order);
  }
  // Returns how much the blocks use the top of the area. For each block, multiplies its bytes in
  // the top by its lifetime in requests. The result is the sum of these products.
  [[nodiscard]] Bytes top_use(const Packing& packing) const {
    const Bytes border = packing.height - StreamPlan::top_of(packing.height);
    Bytes use = 0;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const Bytes end = packing.offsets[i] + blocks_[i].size;
      const TimeSpan& live = blocks_[i].live;
      const Bytes above = end - std::clamp(border, packing.offsets[i], end);
      use += above * (live.end - live.begin);
    }
    return use;
  }
  void keep(Packing packing, const Order& order, std::pair<Bytes, Bytes> rank) {
    best_ = std::move(packing);
    best_order_ = order;
    best_rank_ = rank;
  }

  std::span<const TimedBlock> blocks_;
  Load load_;
  std::uint64_t left_;
  Packing best_;
  Order best_order_;
  std::pair<Bytes, Bytes> best_rank_;  // the best packing's height and top_use
};

}  // namespace

Packing pack(std::span<const TimedBlock> blocks) {
  if (blocks.empty()) return {};
  Tries tries(blocks);
  const auto size = [](const TimedBlock& block) { return block.size; };
  const auto life = [](const TimedBlock& block) { return block.live.end - block.live.begin; };
  const auto whole_life = [](const TimedBlock& block) {
    return Bytes{block.live.length()} + block.carried.length() + block.entered.length();
  };
  const auto crowd = [&](const TimedBlock& block) { return tries.load().most_during(block); };
  tries.try_by(size);
  tries.try_by([&](const TimedBlock& block) { return std::pair(crowd(block), life(block)); });
  tries.try_by([&](const TimedBlock& block) { return std::pair(crowd(block), size(block)); });
  tries.try_by(life);
  tries.try_by([](const TimedBlock&) { return 0; });
  const Order unstacked = tries.best_order();
  tries.try_stacked_by(whole_life);
  tries.try_stacked_by(
      [&](const TimedBlock& block) { return whole_life(block) * (block.size / kUnit); });
  tries.try_stacked_by(size);
  tries.try_stacked_by([](const TimedBlock& block) { return ~Bytes{block.live.begin}; });
  tries.lower_top(unstacked, tries.left() / 2);
  tries.lower_top(tries.best_order(), tries.left());
  return tries.take();
}

}  // namespace plimsoll
