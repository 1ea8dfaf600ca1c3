#include "plimsoll/planning/steps.h"

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <utility>

namespace plimsoll {
namespace {

constexpr std::size_t kMostDistances = 32;  // `likely_steps` keeps at most 32 distances
constexpr std::uint32_t kContext = 8;       // consecutive requests that `likely_steps` compares
// A section must save at least `kLeastSaved` slots, and at least one slot for every `kPartSaved`
// requests of the stream.
constexpr std::uint32_t kLeastSaved = 16;
constexpr std::uint32_t kPartSaved = 20;

class StepSearch {
 public:
  StepSearch(std::span<const TimedRequest> requests, Likeness likeness)
      : requests_(requests),
        likeness_(likeness),
        least_saved_(std::max(kLeastSaved, count() / kPartSaved)) {}

  // Divides the requests from `begin` to `end - 1` into sections. Appends the sections to `found`,
  // in the order of the requests.
  void add_sections(std::uint32_t begin, std::uint32_t end, std::vector<Section>& found) const {
    if (begin == end) return;
    const Section best = best_section(begin, end);
    if (best.times == 1) {
      found.push_back({begin, end - begin, 1});
      return;
    }
    add_sections(begin, best.first, found);
    found.push_back(best);
    add_sections(best.end(), end, found);
  }

 private:
  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(requests_.size()); }
  [[nodiscard]] std::uint32_t life(std::uint32_t i) const { return requests_[i].end - i; }
  [[nodiscard]] bool is_never_freed(std::uint32_t i) const { return requests_[i].end == count(); }

  // Returns whether the slot of request i can also serve the request one step later.
  [[nodiscard]] bool are_alike(std::uint32_t i, std::uint32_t step) const {
    const TimedRequest& now = requests_[i];
    const TimedRequest& later = requests_[i + step];
    if (now.is_shared != later.is_shared) return false;
    if (now.is_shared) return now.size == later.size;
    if (likeness_ == Likeness::same_size && now.size != later.size) return false;
    if (now.size > 2 * later.size || later.size > 2 * now.size) return false;
    if (life(i) > step) return false;
    // The program may have ended before it freed the later request.
    return life(i) == life(i + step) || (is_never_freed(i + step) && life(i + step) <= life(i));
  }

  // Returns the repeated section that saves the most slots. If none saves enough, returns all
  // requests as one section that does not repeat.
  [[nodiscard]] Section best_section(std::uint32_t begin, std::uint32_t end) const {
    Section best{begin, end - begin, 1};
    std::uint32_t most = least_saved_ - 1;
    for (const std::uint32_t step : likely_steps(begin, end)) {
      std::uint32_t run = 0;
      for (std::uint32_t i = begin; i + step <= end; ++i) {
        if (i + step < end && are_alike(i, step)) {
          ++run;
          continue;
        }
        const std::uint32_t saved = run / step * step;
        if (saved > most) {
          most = saved;
          best = {i - run, step, 1 + run / step};
        }
        run = 0;
      }
    }
    return best;
  }

  // Returns candidates for the length of a step: the distances that often lie between a request and
  // the latest similar request before it. Each request is compared in two ways: by itself, and
  // together with the `kContext - 1` requests before it. The second way distinguishes requests that
  // look the same by themselves. If there are enough requests, the candidates also include twice
  // each distance. In a loop like `x = make()`, the old block lives until the new block is
  // allocated. The old block thus outlives its step, and only every second block can lie in the
  // same place.
  [[nodiscard]] std::vector<std::uint32_t> likely_steps(std::uint32_t begin,
                                                        std::uint32_t end) const {
    std::unordered_map<std::uint32_t, std::uint64_t> weights;
    for (const std::uint32_t context : {std::uint32_t{1}, kContext}) {
      std::unordered_map<std::uint64_t, std::uint32_t> latest;
      for (std::uint32_t i = begin; i < end; ++i) {
        const auto [entry, is_new] = latest.try_emplace(key(begin, i, context), i);
        if (is_new) continue;
        const std::uint32_t distance = i - std::exchange(entry->second, i);
        weights[distance] += distance;  // a longer step is worth more: it has more requests
      }
    }
    std::vector<std::pair<std::uint64_t, std::uint32_t>> sorted;
    for (const auto& [distance, weight] : weights) {
      if (2 * distance <= end - begin) sorted.emplace_back(weight, distance);
    }
    std::ranges::sort(sorted, std::ranges::greater{});
    if (sorted.size() > kMostDistances) sorted.resize(kMostDistances);
    std::vector<std::uint32_t> steps;
    for (const auto& [weight, distance] : sorted) {
      steps.push_back(distance);
      if (4 * distance <= end - begin) steps.push_back(2 * distance);
    }
    std::ranges::sort(steps);
    return steps;
  }

  // Returns a hash of the request and the requests before it, `context` requests in all. Two
  // requests have equal hashes if they are alike and the requests before them are alike, too.
  [[nodiscard]] std::uint64_t key(std::uint32_t begin, std::uint32_t i,
                                  std::uint32_t context) const {
    constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15u;
    std::uint64_t key = 0;
    for (std::uint32_t back = 0; back < std::min(context, i - begin + 1); ++back) {
      const TimedRequest& request = requests_[i - back];
      const bool counts_size = likeness_ == Likeness::same_size || request.is_shared;
      key = (key + (counts_size ? request.size : 0)) * kFactor;
      key = (key + (request.is_shared ? 0 : life(i - back))) * kFactor;
    }
    return key;
  }

  std::span<const TimedRequest> requests_;
  Likeness likeness_;
  std::uint32_t least_saved_;
};

}  // namespace

std::vector<Section> find_sections(std::span<const TimedRequest> requests, Likeness likeness) {
  std::vector<Section> found;
  const StepSearch search(requests, likeness);
  search.add_sections(0, static_cast<std::uint32_t>(requests.size()), found);
  return found;
}

}  // namespace plimsoll
