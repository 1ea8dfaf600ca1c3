// Plays the same memory requests to several allocators in turn, and times them.
//
// A sequence is a list of one thread's requests and frees. It is made before the timing, so nearly
// all of the measured time is spent in the allocator. `play` plays a scenario once, then frees all
// blocks. So once a play makes no driver calls, later plays make none either. `warm_up` plays the
// scenario until a play makes no driver calls, at most ten times. Only the plays after the warm-up
// are timed.
#pragma once

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace plimsoll::benchmark {

// The interface through which the benchmark calls an allocator. Streams are numbered from 0.
class Subject {
 public:
  Subject() = default;
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;
  virtual ~Subject() = default;

  virtual std::uint64_t allocate(std::uint64_t size, std::uint32_t stream) = 0;
  virtual void free(std::uint64_t address) = 0;
  virtual void empty_cache() = 0;
  [[nodiscard]] virtual std::uint64_t driver_calls() const = 0;
};

// One or more allocators that are timed together, under one name. Thread n calls
// `subjects[n % subjects.size()]`.
struct Team {
  std::string name;
  std::vector<Subject*> subjects;
};

// One request or one free. A slot is a numbered place for one live block. A `size` above 0
// allocates the slot's block. A `size` of 0 frees the block. A file from allocator.py is an array
// of this struct.
struct Operation {
  std::uint32_t slot = 0;
  std::uint32_t stream = 0;
  std::uint64_t size = 0;
};

struct Sequence {
  // Fills the cache: all threads allocate these blocks, and then free them. Not timed.
  std::vector<Operation> reserve;
  std::vector<Operation> before;  // played once, before the rounds of `timed`; not timed
  std::vector<Operation> timed;
  // How often `timed` is played. If more than once, `timed` must free all that it allocates.
  std::size_t rounds = 1;
  std::size_t slots = 0;
};

struct Scenario {
  std::string name;
  std::vector<Sequence> threads;
  std::size_t operations_per_unit = 1;  // a time covers this many operations
};

struct Sample {
  double ns_per_unit = 0;  // the elapsed time, divided by the number of units in one thread
  std::uint64_t driver_calls = 0;
  std::uint64_t heap_allocations = 0;
};

struct Options {
  int repetitions = 9;
  std::vector<std::string> traces;
  // Returns the number of heap allocations so far. If the function is empty, they are not counted.
  std::function<std::uint64_t()> heap_allocations;
  std::function<void(const std::string&)> print;  // prints a line
};

inline constexpr std::uint64_t kKibi = 1024;
inline constexpr std::uint64_t kMebi = 1024 * kKibi;

// --- sequences ---------------------------------------------------------------------------------

// Draws sizes between 512 bytes and 64 MiB, log-uniformly.
class RandomSizes {
 public:
  explicit RandomSizes(std::uint64_t seed) : random_(seed) {}
  std::uint64_t size() {
    std::uniform_real_distribution<double> exponent(9.0, 26.0);
    return static_cast<std::uint64_t>(std::exp2(exponent(random_)));
  }
  std::uint32_t below(std::size_t count) {
    return std::uniform_int_distribution<std::uint32_t>(
        0, static_cast<std::uint32_t>(count - 1))(random_);
  }

 private:
  std::mt19937_64 random_;
};

// Returns a sequence that allocates and frees one block again and again, among 300 live blocks with
// 300 gaps between them.
inline Sequence hot_pair(std::uint64_t size) {
  constexpr std::uint32_t kNeighbours = 600;
  RandomSizes random(1);
  Sequence sequence;
  for (std::uint32_t slot = 0; slot < kNeighbours; ++slot) {
    sequence.before.push_back({slot, 0, random.size()});
  }
  for (std::uint32_t slot = 0; slot < kNeighbours; slot += 2) sequence.before.push_back({slot});
  sequence.timed = {{kNeighbours, 0, size}, {kNeighbours, 0, 0}};
  sequence.rounds = 200'000;
  sequence.slots = kNeighbours + 1;
  return sequence;
}

// The free memory in the cache when the sequence of `churn` begins. With `tight`, it is at most
// what the sequence needs. With `ample`, it is more than twice what the sequence needs, so every
// request finds a free block.
enum class Cache : std::uint8_t { tight, ample };

// Returns a sequence that frees random blocks and allocates new ones, so that about `live` blocks
// are in use at any time.
inline Sequence churn(std::size_t live, Cache cache, std::uint32_t stream, std::size_t operations) {
  RandomSizes random(stream + 1);
  Sequence sequence;
  sequence.slots = 2 * live;
  if (cache == Cache::ample) {
    const auto small_blocks = static_cast<std::uint32_t>(live / 4);
    sequence.reserve.push_back({small_blocks, stream, live * 16 * kMebi});
    for (std::uint32_t i = 0; i < small_blocks; ++i) sequence.reserve.push_back({i, stream, kMebi});
  }
  std::vector<bool> is_live(sequence.slots);
  for (std::uint32_t slot = 0; slot < sequence.slots; slot += 2) {
    sequence.before.push_back({slot, stream, random.size()});
    is_live[slot] = true;
  }
  for (std::size_t i = 0; i < operations; ++i) {
    const std::uint32_t slot = random.below(sequence.slots);
    sequence.timed.push_back({slot, stream, is_live[slot] ? 0 : random.size()});
    is_live[slot] = !is_live[slot];
  }
  return sequence;
}

inline Sequence recorded(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw std::runtime_error("cannot read " + path);
  Sequence sequence;
  sequence.timed.resize(static_cast<std::size_t>(file.tellg()) / sizeof(Operation));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(sequence.timed.data()),
            static_cast<std::streamsize>(sequence.timed.size() * sizeof(Operation)));
  for (const Operation& operation : sequence.timed) {
    sequence.slots = std::max<std::size_t>(sequence.slots, operation.slot + 1);
  }
  return sequence;
}

// --- playing -----------------------------------------------------------------------------------

class Player {
 public:
  Player(Subject& subject, const Sequence& sequence)
      : subject_(subject), sequence_(sequence), addresses_(sequence.slots) {}

  void reserve() { play(sequence_.reserve); }
  void prepare() {
    free_all();
    play(sequence_.before);
  }
  void run() {
    for (std::size_t round = 0; round < sequence_.rounds; ++round) play(sequence_.timed);
  }
  void free_all() {
    for (std::uint64_t& address : addresses_) {
      if (address != 0) subject_.free(address);
      address = 0;
    }
  }

 private:
  void play(const std::vector<Operation>& operations) {
    for (const Operation& operation : operations) {
      std::uint64_t& address = addresses_[operation.slot];
      if (operation.size != 0) {
        address = subject_.allocate(operation.size, operation.stream);
      } else {
        subject_.free(address);
        address = 0;
      }
    }
  }

  Subject& subject_;
  const Sequence& sequence_;
  std::vector<std::uint64_t> addresses_;
};

inline std::uint64_t driver_calls(const Team& team) {
  std::uint64_t calls = 0;
  for (const Subject* const subject : team.subjects) calls += subject->driver_calls();
  return calls;
}

// Plays a scenario once. The timing begins when all threads are ready to play their `timed`
// operations. It ends when the last thread has played them.
inline Sample play(const Scenario& scenario, const Team& team, const Options& options) {
  using Clock = std::chrono::steady_clock;
  struct Moment {
    Clock::time_point time;
    std::uint64_t driver_calls = 0;
    std::uint64_t heap_allocations = 0;
  };
  // Three moments: all threads have filled the cache; the timing begins; the timing ends.
  std::array<Moment, 3> moments;
  std::size_t reached = 0;
  const auto note = [&]() noexcept {
    const std::uint64_t heap = options.heap_allocations ? options.heap_allocations() : 0;
    moments[reached] = {Clock::now(), driver_calls(team), heap};
    ++reached;
  };
  std::barrier all(static_cast<std::ptrdiff_t>(scenario.threads.size()), note);
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> failures(scenario.threads.size());
  for (std::size_t i = 0; i < scenario.threads.size(); ++i) {
    Subject& subject = *team.subjects[i % team.subjects.size()];
    threads.emplace_back([&all, &subject, &sequence = scenario.threads[i], &failure = failures[i]] {
      try {
        Player player(subject, sequence);
        player.reserve();
        all.arrive_and_wait();
        player.prepare();
        all.arrive_and_wait();
        player.run();
        all.arrive_and_wait();
        player.free_all();
      } catch (...) {
        failure = std::current_exception();
        all.arrive_and_drop();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }

  const Sequence& first = scenario.threads.front();
  const std::size_t units = first.timed.size() * first.rounds / scenario.operations_per_unit;
  const Moment& begin = moments[1];
  const Moment& end = moments[2];
  const std::chrono::duration<double, std::nano> passed = end.time - begin.time;
  return {passed.count() / static_cast<double>(units), end.driver_calls - begin.driver_calls,
          end.heap_allocations - begin.heap_allocations};
}

// Plays the scenario until it needs no more memory from the driver.
inline void warm_up(const Scenario& scenario, const Team& team, const Options& options) {
  constexpr int kMost = 10;
  for (Subject* const subject : team.subjects) subject->empty_cache();
  std::uint64_t before = 0;
  for (int i = 0; i < kMost && (i == 0 || driver_calls(team) != before); ++i) {
    before = driver_calls(team);
    play(scenario, team, options);
  }
}

// Returns each team's median time, with the driver calls and heap allocations of all repetitions.
// The teams alternate.
inline std::vector<Sample> measure(const Scenario& scenario, const std::vector<Team>& teams,
                                   const Options& options) {
  for (const Team& team : teams) warm_up(scenario, team, options);
  std::vector<std::vector<double>> times(teams.size());
  std::vector<Sample> found(teams.size());
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    for (std::size_t i = 0; i < teams.size(); ++i) {
      const Sample sample = play(scenario, teams[i], options);
      times[i].push_back(sample.ns_per_unit);
      found[i].driver_calls += sample.driver_calls;
      found[i].heap_allocations += sample.heap_allocations;
    }
  }
  for (std::size_t i = 0; i < teams.size(); ++i) {
    std::sort(times[i].begin(), times[i].end());
    found[i].ns_per_unit = times[i][times[i].size() / 2];
  }
  for (const Team& team : teams) {
    for (Subject* const subject : team.subjects) subject->empty_cache();
  }
  return found;
}

// --- tables ------------------------------------------------------------------------------------

template <typename... Values>
std::string format(const char* pattern, Values... values) {
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(), pattern, values...);
  return text.data();
}

inline std::string heading(const std::string& what, const std::vector<Team>& teams) {
  std::string first = format("%-36s", what.c_str());
  std::string second = format("%-36s", "");
  for (const Team& team : teams) {
    first += format(" %25s", team.name.c_str());
    second += format(" %11s %6s %6s", "ns", "calls", "heap");
  }
  return first + "\n" + second;
}

inline std::string row(const std::string& name, const std::vector<Sample>& found,
                       const Options& options) {
  std::string line = format("%-36s", name.c_str());
  for (const Sample& sample : found) {
    line += format(" %11.1f %6llu", sample.ns_per_unit,
                   static_cast<unsigned long long>(sample.driver_calls));
    line += options.heap_allocations
                ? format(" %6llu", static_cast<unsigned long long>(sample.heap_allocations))
                : format(" %6s", "-");
  }
  return line;
}

// Prints how long a request of one thread takes under each of two teams, and the ratio.
inline void compare_requests(const std::vector<Team>& teams, const Options& options) {
  constexpr std::size_t kPair = 2;
  std::vector<Scenario> scenarios{
      {"hot pair, 512 B", {hot_pair(512)}, kPair},
      {"hot pair, 64 KiB", {hot_pair(64 * kKibi)}, kPair},
      {"hot pair, 2 MiB", {hot_pair(2 * kMebi)}, kPair},
      {"hot pair, 20 MiB", {hot_pair(20 * kMebi)}, kPair},
      {"churn, 1000 live blocks", {churn(1000, Cache::ample, 0, 200'000)}},
      {"churn, as little memory as it can", {churn(1000, Cache::tight, 0, 200'000)}},
  };
  for (const std::string& path : options.traces) {
    const std::size_t begin = path.find_last_of('/') + 1;
    scenarios.push_back({path.substr(begin, path.find('.', begin) - begin), {recorded(path)}});
  }
  options.print(heading("a pair: both; else an operation", teams) + "    ratio");
  for (const Scenario& scenario : scenarios) {
    const std::vector<Sample> found = measure(scenario, teams, options);
    options.print(row(scenario.name, found, options) +
                  format(" %7.2fx", found[1].ns_per_unit / found[0].ns_per_unit));
  }
}

// Prints the times of threads that churn, each on its own stream. If every thread has a core, the
// time of an operation should not grow with the number of threads.
inline void compare_threads(const std::vector<Team>& teams, const Options& options) {
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  options.print(heading(format("churn by threads, %u cores", cores), teams) + "   cores allow");
  double alone = 0;
  for (const unsigned count : {1U, 2U, 4U, 8U}) {
    Scenario scenario{format("%u threads on %u streams", count, count), {}};
    for (unsigned i = 0; i < count; ++i)
      scenario.threads.push_back(churn(125, Cache::ample, i, 400'000));
    const std::vector<Sample> found = measure(scenario, teams, options);
    if (count == 1) alone = found[0].ns_per_unit;
    const double share = std::max(1.0, static_cast<double>(count) / cores);
    options.print(row(scenario.name, found, options) + format(" %13.1f", alone * share));
  }
}

}  // namespace plimsoll::benchmark
