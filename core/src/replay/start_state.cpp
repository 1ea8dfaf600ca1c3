#include "plimsoll/replay/start_state.h"

#include <map>
#include <optional>
#include <string>
#include <unordered_map>

namespace plimsoll {
namespace {

struct LiveBlock {
  Bytes requested = 0;
  std::optional<Bytes> size;  // known only if the block is still live when the recording ends
  bool pending = false;
  std::uint32_t context = 0;
};

[[noreturn]] void fail(const std::string& why) {
  throw ReplayError(
      "the history does not start at the first allocation, and its start cannot be "
      "reconstructed: " +
      why);
}

class Past {
 public:
  Past(const std::vector<SegmentInfo>& final_segments, const AllocatorConfig& config)
      : config_(config) {
    for (const SegmentInfo& segment : final_segments) {
      for (const BlockInfo& block : segment.blocks) {
        if (block.state == BlockState::inactive) continue;
        live_[block.address] = {block.requested, block.size,
                                block.state == BlockState::active_pending_free, block.context};
      }
      SegmentInfo empty = segment;
      empty.blocks.clear();
      segments_.emplace(segment.address, std::move(empty));
    }
  }

  void undo(const TraceEvent& event, std::size_t index) {
    switch (event.action) {
      case Action::alloc:
        if (live_.erase(event.address) == 0) {
          fail("event " + std::to_string(index) + " allocates " + format_address(event.address) +
               ", of which neither a later event nor the final segments know");
        }
        break;
      case Action::free_requested:
        live_[event.address].pending = false;
        live_[event.address].requested = event.size;
        break;
      case Action::free_completed:
        live_[event.address] = {event.size, std::nullopt, true, 0};
        break;
      case Action::segment_alloc:
        if (segments_.erase(event.address) == 0) {
          fail("event " + std::to_string(index) + " makes the segment " +
               format_address(event.address) + ", which is missing from the final segments");
        }
        break;
      case Action::segment_free:
        add({event.address,
             event.size,
             event.stream,
             event.pool,
             event.size == AllocatorConfig::kSmallSegment,
             false,
             0,
             {}});
        break;
      case Action::segment_map: remove_range(event, index); break;
      case Action::segment_unmap: add_range(event); break;
      case Action::snapshot:
      case Action::oom: break;
    }
  }

  std::vector<SegmentInfo> start() && {
    std::map<Address, LiveBlock> blocks(live_.begin(), live_.end());
    std::vector<SegmentInfo> result;
    for (auto& [address, segment] : segments_) {
      const Address end = address + segment.total_size;
      auto block = blocks.lower_bound(address);
      Address cursor = address;
      if (segment.expandable && block != blocks.end() && block->first < end) {
        segment.small =
            config_.round_request(block->second.requested) <= AllocatorConfig::kSmallRequest;
      }
      while (block != blocks.end() && block->first < end) {
        if (block->first > cursor) {
          segment.blocks.push_back({cursor, block->first - cursor, 0, BlockState::inactive, 0});
        }
        const auto next = std::next(block);
        const Address bound = next != blocks.end() && next->first < end ? next->first : end;
        segment.blocks.push_back(sized(block->first, block->second, bound, segment));
        cursor = block->first + segment.blocks.back().size;
        blocks.erase(block);
        block = next;
      }
      if (cursor < end) {
        segment.blocks.push_back({cursor, end - cursor, 0, BlockState::inactive, 0});
      }
      result.push_back(std::move(segment));
    }
    if (!blocks.empty()) {
      fail("the block " + format_address(blocks.begin()->first) + " lies in no known segment");
    }
    return result;
  }

 private:
  void add(SegmentInfo segment) { segments_[segment.address] = std::move(segment); }

  // Adds a mapped range of an expandable segment, joined with the ranges that it touches.
  void add_range(const TraceEvent& event) {
    SegmentInfo range{event.address,
                      event.size,
                      event.stream,
                      event.pool,
                      event.size % config_.large_segment_size != 0,
                      true,
                      0,
                      {}};
    const auto joins = [&](const SegmentInfo& other) {
      return other.expandable && other.stream == range.stream && other.pool == range.pool;
    };
    auto next = segments_.lower_bound(event.address);
    if (next != segments_.end() && next->first == event.address + event.size &&
        joins(next->second)) {
      range.small = next->second.small;
      range.total_size += next->second.total_size;
      next = segments_.erase(next);
    }
    if (next != segments_.begin()) {
      SegmentInfo& previous = std::prev(next)->second;
      if (previous.address + previous.total_size == event.address && joins(previous)) {
        previous.total_size += range.total_size;
        return;
      }
    }
    add(std::move(range));
  }

  void remove_range(const TraceEvent& event, std::size_t index) {
    auto entry = segments_.upper_bound(event.address);
    const Address end = event.address + event.size;
    if (entry == segments_.begin() || (--entry)->first + entry->second.total_size < end) {
      fail("event " + std::to_string(index) + " maps " + format_address(event.address) +
           ", which is missing from the final segments");
    }
    SegmentInfo range = entry->second;
    segments_.erase(entry);
    const Address range_end = range.address + range.total_size;
    if (end < range_end) {
      SegmentInfo back = range;
      back.address = end;
      back.total_size = range_end - end;
      add(std::move(back));
    }
    if (range.address < event.address) {
      range.total_size = event.address - range.address;
      add(std::move(range));
    }
  }

  [[nodiscard]] BlockInfo sized(Address address, const LiveBlock& block, Address bound,
                                const SegmentInfo& segment) const {
    const Bytes space = bound - address;
    Bytes size = block.size.value_or(config_.round_request(block.requested));
    if (size > space) {
      fail("the block " + format_address(address) + " of " + std::to_string(size) +
           " bytes would run into its neighbour");
    }
    if (!block.size && !segment.expandable && !segment.small) {
      const bool oversize = size >= config_.max_split_size;
      if (oversize || space - size <= AllocatorConfig::kSmallRequest) size = space;
    }
    return {address, size, block.requested,
            block.pending ? BlockState::active_pending_free : BlockState::active_allocated,
            block.context};
  }

  const AllocatorConfig& config_;
  std::unordered_map<Address, LiveBlock> live_;
  std::map<Address, SegmentInfo> segments_;
};

// A block whose end is uncertain because free memory, the gap, follows it. The first use of the gap
// shows the end.
struct UncertainEnd {
  Address block = 0;
  Address gap_end = 0;
  BlockInfo* owner = nullptr;
  BlockInfo* gap = nullptr;
};

void settle_ends(const EventSpan& events, std::vector<SegmentInfo>& segments) {
  std::map<Address, UncertainEnd> by_gap;
  std::unordered_map<Address, Address> gap_of;  // from a block with an uncertain end to its gap
  for (SegmentInfo& segment : segments) {
    if (segment.expandable || segment.small) continue;
    for (std::size_t i = 0; i + 1 < segment.blocks.size(); ++i) {
      BlockInfo& owner = segment.blocks[i];
      BlockInfo& gap = segment.blocks[i + 1];
      if (owner.state == BlockState::inactive || gap.state != BlockState::inactive) continue;
      by_gap[gap.address] = {owner.address, gap.address + gap.size, &owner, &gap};
      gap_of[owner.address] = gap.address;
    }
  }
  for (std::size_t i = 0; i < events.count() && !by_gap.empty(); ++i) {
    const TraceEvent event = events[i];
    if (event.action == Action::free_requested || event.action == Action::free_completed) {
      if (const auto gap = gap_of.find(event.address); gap != gap_of.end()) {
        by_gap.erase(gap->second);
        gap_of.erase(gap);
      }
    } else if (event.action == Action::alloc) {
      auto entry = by_gap.upper_bound(event.address);
      if (entry == by_gap.begin()) continue;
      const auto& [start, end] = *--entry;
      if (event.address >= end.gap_end) continue;
      const Bytes tail = event.address - start;
      if (tail <= AllocatorConfig::kSmallRequest) {
        end.owner->size += tail;
        end.gap->address += tail;
        end.gap->size -= tail;
      }
      gap_of.erase(end.block);
      by_gap.erase(entry);
    }
  }
}

}  // namespace

bool starts_from_nothing(const EventSpan& events, const std::vector<SegmentInfo>& final_segments) {
  if (final_segments.empty()) return true;
  std::int64_t reserved = 0;
  std::int64_t active = 0;
  for (const SegmentInfo& segment : final_segments) {
    reserved += static_cast<std::int64_t>(segment.total_size);
    for (const BlockInfo& block : segment.blocks) {
      if (block.state != BlockState::inactive) ++active;
    }
  }
  for (std::size_t i = 0; i < events.count(); ++i) {
    const auto size = static_cast<std::int64_t>(events.size[i]);
    switch (static_cast<Action>(events.action[i])) {
      case Action::alloc: --active; break;
      case Action::free_completed: ++active; break;
      case Action::segment_alloc:
      case Action::segment_map: reserved -= size; break;
      case Action::segment_free:
      case Action::segment_unmap: reserved += size; break;
      default: break;
    }
  }
  return reserved == 0 && active == 0;
}

std::vector<SegmentInfo> reconstruct_start(const EventSpan& events,
                                           const std::vector<SegmentInfo>& final_segments,
                                           const AllocatorConfig& config) {
  Past past(final_segments, config);
  for (std::size_t i = events.count(); i-- > 0;) past.undo(events[i], i);
  std::vector<SegmentInfo> segments = std::move(past).start();
  settle_ends(events, segments);
  return segments;
}

}  // namespace plimsoll
