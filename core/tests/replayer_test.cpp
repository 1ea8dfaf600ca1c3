#include "plimsoll/replay/replayer.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "plimsoll/allocator/uncached.h"
#include "support.h"

namespace plimsoll {
namespace {

constexpr Address kA = 0x7f00'0000'0000;
constexpr Address kB = 0x7f10'0000'0000;
constexpr Address kC = 0x7f20'0000'0000;
constexpr PoolId kPool{0, 1};
constexpr ReplayOptions kCompare{.compare = true};
constexpr ReplayOptions kOnly{};

TraceEvent event(Action action, Address address, Bytes size, PoolId pool = {}) {
  return {action, address, size, 0, pool, 0, 0};
}
TraceEvent alloc(Address address, Bytes size, PoolId pool = {}) {
  return event(Action::alloc, address, size, pool);
}
TraceEvent free_requested(Address address, Bytes size, PoolId pool = {}) {
  return event(Action::free_requested, address, size, pool);
}
TraceEvent free_completed(Address address, Bytes size, PoolId pool = {}) {
  return event(Action::free_completed, address, size, pool);
}
TraceEvent segment_alloc(Address address, Bytes size, PoolId pool = {}) {
  return event(Action::segment_alloc, address, size, pool);
}
TraceEvent segment_free(Address address, Bytes size, PoolId pool = {}) {
  return event(Action::segment_free, address, size, pool);
}

// A replay on a GPU of its own.
struct Replay {
  explicit Replay(const ReplayOptions& options, Bytes memory = 1_GiB, std::string_view config = "",
                  TorchVersion version = {})
      : gpu(memory, config, version),
        replayer(gpu.allocator, gpu.driver, &gpu.allocator, options) {}

  Replay& run(const EventColumns& events, std::size_t batch = 1000) {
    for (std::size_t first = 0; first < events.count(); first += batch) {
      replayer.feed(events.span(first, std::min(batch, events.count() - first)));
    }
    replayer.finish();
    return *this;
  }
  Replay& run(const std::vector<TraceEvent>& events) { return run(EventColumns(events)); }

  // "event 3: alloc 5M, not alloc 4M": where the first difference is; empty if there is none.
  [[nodiscard]] std::string difference() const {
    const auto& difference = replayer.first_difference();
    if (!difference) return "";
    const auto show = [](const std::optional<TraceEvent>& entry) {
      if (!entry) return std::string("nothing");
      return std::string(to_string(entry->action)) + ' ' + short_size(entry->size);
    };
    return "event " + std::to_string(difference->event) + ": " + show(difference->recorded) +
           ", not " + show(difference->replayed);
  }

  Gpu gpu;
  Replayer replayer;
};

std::string refusal(const std::vector<TraceEvent>& events) {
  return message_of<ReplayError>([&] { return (Replay(kOnly).run(events), 0); });
}

struct Setting {
  const char* config;
  TorchVersion version;
  std::optional<Bytes> limit;
  bool empties_cache;  // where that cannot be taken for something else that the allocator did
};

const std::vector<Setting> kSettings{
    {"", {2, 9}, {}, true},
    {"", {2, 13}, 200_MiB, true},
    {"roundup_power2_divisions:8", {2, 11}, {}, true},
    {"large_segment_size_mb:40,throw_on_cudamalloc_oom:True", {2, 12}, 240_MiB, true},
    {"expandable_segments:True", {2, 11}, {}, true},
    {"expandable_segments:True", {2, 13}, 200_MiB, true},
    {"max_split_size_mb:32,max_non_split_rounding_mb:24", {2, 10}, {}, false},
    {"garbage_collection_threshold:0.6", {2, 11}, 220_MiB, false},
    {"garbage_collection_threshold:0.3,max_split_size_mb:24", {2, 13}, 240_MiB, false},
};

// A random program's history and what it left behind.
struct Recording {
  Recording(const Setting& setting, std::uint64_t seed, RandomProgram::Options options, int steps) {
    Gpu gpu(256_MiB, setting.config, setting.version);
    gpu.allocator.set_limit(setting.limit);
    RandomProgram program(gpu, seed, options);
    for (int i = 0; i < steps; ++i) {
      message_of<OutOfMemory>([&] { return (program.step(), 0); });
    }
    events = EventColumns(gpu.allocator.history());
    state = describe(gpu.allocator.segments());
  }

  EventColumns events;
  std::string state;
};

}  // namespace

// --- comparing ---------------------------------------------------------------------------------

TEST(replay_repeats_random_programs_exactly) {
  for (const Setting& setting : kSettings) {
    for (int mode = 0; mode < 4; ++mode) {
      int bad = 0;
      std::string first;
      for (std::uint64_t seed = 1; seed <= 40; ++seed) {
        const Recording recording(setting, seed,
                                  {.uses_streams = (mode & 1) != 0,
                                   .uses_pools = (mode & 2) != 0,
                                   .empties_cache = setting.empties_cache},
                                  400);
        Replay replay(kCompare, 256_MiB, setting.config, setting.version);
        replay.gpu.allocator.set_limit(setting.limit);
        replay.run(recording.events);
        if (replay.difference() != "" ||
            describe(replay.gpu.allocator.segments()) != recording.state) {
          ++bad;
          first = std::to_string(seed) + replay.difference();
        }
      }
      if (bad) check::fail(setting.config, mode, std::to_string(bad) + " " + first);
    }
  }
}

}  // namespace plimsoll
