#include "plimsoll/replay/limit.h"

#include <algorithm>

namespace plimsoll {

void LimitEvidence::feed(const EventSpan& events) {
  for (std::size_t i = 0; i < events.count(); ++i) {
    const Bytes size = events.size[i];
    switch (static_cast<Action>(events.action[i])) {
      case Action::segment_alloc:
      case Action::segment_map:
        has_segments_ = true;
        // `request` needs the value of `reserved_` before the growth. The value after the growth
        // may exceed the value that PyTorch compared with its limit, because PyTorch maps whole
        // pages.
        if (!before_growth_) before_growth_ = reserved_;
        reserved_ += size;
        break;
      case Action::segment_free:
      case Action::segment_unmap:
        if (!before_release_) before_release_ = reserved_;
        reserved_ -= std::min(size, reserved_);
        break;
      case Action::alloc: request(size, false); break;
      case Action::oom: request(size, true); break;
      case Action::free_requested:
      case Action::snapshot:
        if (before_release_) emptied_by_program_ = true;
        before_release_ = before_growth_ = std::nullopt;
        break;
      case Action::free_completed: break;
    }
  }
}

void LimitEvidence::request(Bytes size, bool failed) {
  const Bytes wanted = config_.segment_size(config_.round_request(size));
  if (failed) {
    refusals_.push_back({reserved_, wanted, true});
  } else if (before_growth_) {
    largest_ = std::max(largest_, *before_growth_ + wanted);
    if (before_release_) refusals_.push_back({*before_release_, wanted, false});
  }
  before_release_ = before_growth_ = std::nullopt;
}

std::optional<LimitEvidence::Range> LimitEvidence::range() const {
  const double threshold = config_.garbage_collection_threshold;
  const auto collected_above = [&](Bytes reserved) {
    return static_cast<Bytes>(static_cast<double>(reserved) / threshold);
  };
  std::optional<Bytes> below;
  bool emptied_by_program = emptied_by_program_;
  bool failed = false;
  for (const Refusal& refusal : refusals_) {
    Bytes bound = refusal.reserved + refusal.wanted;
    if (threshold > 0 && !refusal.failed)
      bound = std::max(bound, collected_above(refusal.reserved));
    failed = failed || refusal.failed;
    if (bound <= largest_) {
      // PyTorch once reserved `bound` bytes or more. So PyTorch's limit did not cause this refusal.
      emptied_by_program = true;
    } else if (!below || bound < *below) {
      below = bound;
    }
  }
  if (!below || (emptied_by_program && !failed && threshold == 0)) return std::nullopt;
  return Range{largest_, *below};
}

}  // namespace plimsoll
