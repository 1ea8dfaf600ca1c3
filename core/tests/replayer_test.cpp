#include "plimsoll/replay/replayer.h"

#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "support.h"

namespace plimsoll {
namespace {

constexpr ReplayOptions kCompare{.compare = true};

EventColumns recorded(const Gpu& gpu) {
  EventColumns events;
  const History& history = gpu.allocator.history();
  for (std::size_t i = 0; i < history.size(); ++i) events.add(history[i]);
  return events;
}

// A replay on a GPU of its own.
struct Replay {
  explicit Replay(std::string_view config = "", const ReplayOptions& options = kCompare,
                  Bytes memory = 1_GiB, TorchVersion version = {})
      : gpu(memory, config, version),
        replayer(gpu.allocator, gpu.driver, &gpu.allocator, options) {}

  Replay& run(const EventColumns& events) {
    replayer.feed(events.span());
    replayer.finish();
    return *this;
  }

  Gpu gpu;
  Replayer replayer;
};

}  // namespace

struct Setting {
  const char* config;
  TorchVersion version;
  std::optional<Bytes> limit;
};

TEST(replay_repeats_random_programs_exactly) {
  for (const Setting& setting :
       {Setting{"", {2, 9}, {}},
        {"", {2, 13}, 200_MiB},
        {"roundup_power2_divisions:8", {2, 11}, {}},
        {"max_split_size_mb:32,max_non_split_rounding_mb:24", {2, 10}, {}},
        {"garbage_collection_threshold:0.6", {2, 11}, 220_MiB},
        {"garbage_collection_threshold:0.3,max_split_size_mb:24", {2, 13}, 240_MiB},
        {"large_segment_size_mb:40,throw_on_cudamalloc_oom:True", {2, 12}, 240_MiB},
        {"expandable_segments:True", {2, 11}, {}},
        {"expandable_segments:True,max_split_size_mb:32", {2, 13}, 230_MiB},
        {"expandable_segments:True,garbage_collection_threshold:0.5", {2, 9}, 200_MiB}}) {
    for (int mode = 0; mode < 4; ++mode) {
      int bad = 0, state = 0, errors = 0;
      std::string first;
      for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        Gpu gpu(256_MiB, setting.config, setting.version);
        gpu.allocator.set_limit(setting.limit);
        RandomProgram program(gpu, seed,
                              {.uses_streams = bool(mode & 1), .uses_pools = bool(mode & 2)});
        for (int i = 0; i < 400; ++i) message_of<OutOfMemory>([&] { return (program.step(), 0); });
        const EventColumns events = recorded(gpu);
        Replay replay(setting.config, kCompare, 256_MiB, setting.version);
        replay.gpu.allocator.set_limit(setting.limit);
        try {
          replay.run(events);
        } catch (const std::exception& e) {
          ++errors;
          first = e.what();
          continue;
        }
        const auto& difference = replay.replayer.first_difference();
        if (difference) {
          ++bad;
          first = "event " + std::to_string(difference->event) + " of " +
                  std::to_string(events.count()) + " seed " + std::to_string(seed);
        }
        if (describe(replay.gpu.allocator.segments()) != describe(gpu.allocator.segments()))
          ++state;
      }
      if (bad || state || errors)
        check::fail(setting.config, mode,
                    std::to_string(bad) + " differ, " + std::to_string(state) + " states, " +
                        std::to_string(errors) + " errors: " + first);
    }
  }
}

}  // namespace plimsoll
