#include "comparison.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "plimsoll/allocator/config.h"
#include "plimsoll/base/units.h"
#include "side.h"

namespace {

using namespace plimsoll;

// The result of an operation under one of the two allocators: an address or an error.
struct Outcome {
  enum class Kind : std::uint8_t { done, out_of_memory, other_error };
  Kind kind = Kind::done;
  Address address = 0;
  std::string text;

  // Texts of errors that are not about memory may differ.
  bool operator==(const Outcome& other) const {
    return kind == other.kind && address == other.address &&
           (kind == Kind::other_error || text == other.text);
  }
  [[nodiscard]] std::string to_text() const {
    if (kind == Kind::done) return address == 0 ? "nothing" : format_address(address);
    return (kind == Kind::out_of_memory ? "out of memory: " : "error: ") + text;
  }
};

template <typename Function>
Outcome outcome_of(Function function) {
  try {
    return {Outcome::Kind::done, function(), {}};
  } catch (const OutOfMemoryError& error) {
    return {Outcome::Kind::out_of_memory, 0, error.what()};
  } catch (const OtherError& error) {
    return {Outcome::Kind::other_error, 0, error.what()};
  }
}

std::string to_text(PoolId pool) {
  return "(" + std::to_string(pool.first) + ", " + std::to_string(pool.second) + ")";
}

std::string to_text(const TraceEvent& event) {
  return std::string(to_string(event.action)) + " " + format_address(event.address) + " " +
         std::to_string(event.size) + " stream " + std::to_string(event.stream) + " pool " +
         to_text(event.pool);
}

std::string to_text(const SegmentInfo& segment) {
  std::string text = format_address(segment.address) + " " + std::to_string(segment.total_size) +
                     (segment.small ? " small" : " large") +
                     (segment.expandable ? " expandable" : "") + " stream " +
                     std::to_string(segment.stream) + " pool " + to_text(segment.pool) + ":";
  for (const BlockInfo& block : segment.blocks) {
    text += " " + std::to_string(block.size) + "/" + std::to_string(block.requested) + " " +
            std::string(to_string(block.state)) + ",";
  }
  return text;
}

// Finds each group of consecutive events whose action is `action`, and sorts it by address.
void sort_runs(std::vector<TraceEvent>& events, Action action) {
  const auto is_such = [&](const TraceEvent& event) { return event.action == action; };
  for (auto begin = events.begin(); begin != events.end();) {
    begin = std::find_if(begin, events.end(), is_such);
    const auto end = std::find_if_not(begin, events.end(), is_such);
    std::sort(begin, end, [](const auto& a, const auto& b) { return a.address < b.address; });
    begin = end;
  }
}

std::vector<std::string> lines_of(std::vector<TraceEvent> events) {
  std::vector<std::string> lines;
  for (TraceEvent& event : events) {
    if (!rules().records_pool_of_events()) event.pool = {};
    lines.push_back(to_text(event));
  }
  return lines;
}

std::vector<std::string> lines_of(const std::vector<SegmentInfo>& segments) {
  std::vector<std::string> lines;
  for (const SegmentInfo& segment : segments) lines.push_back(to_text(segment));
  return lines;
}

std::vector<std::string> lines_of(const Statistics& statistics) {
  std::vector<std::string> lines;
  for (const auto& [name, value] : statistics.flatten(true)) {
    lines.push_back(name + " " + std::to_string(value));
  }
  for (const auto& [pool, stats] : statistics.reserved_bytes_by_private_pools) {
    lines.push_back("reserved by pool " + to_text(pool) + " " + std::to_string(stats.all.current) +
                    " peak " + std::to_string(stats.all.peak));
  }
  return lines;
}

// Returns up to `context` equal lines, then the first line that differs and the next two lines, for
// each allocator. Returns an empty text if all lines are equal.
std::string difference_of(const char* what, const std::vector<std::string>& pytorch,
                          const std::vector<std::string>& native, std::size_t context) {
  std::size_t place = 0;
  while (place < pytorch.size() && place < native.size() && pytorch[place] == native[place]) {
    ++place;
  }
  if (place == pytorch.size() && place == native.size()) return {};
  std::string text = std::string(what) + " differ\n";
  for (std::size_t i = place - std::min(place, context); i < place; ++i) {
    text += "    both    " + pytorch[i] + "\n";
  }
  for (std::size_t i = place; i < std::min(place + 3, pytorch.size()); ++i) {
    text += "    PyTorch " + pytorch[i] + "\n";
  }
  for (std::size_t i = place; i < std::min(place + 3, native.size()); ++i) {
    text += "    native  " + native[i] + "\n";
  }
  return text;
}

// A figure that must be equal in both simulated drivers. The numbers of unmap, create and reserve
// calls may differ: PyTorch unmaps page by page where native unmaps a range. PyTorch also creates
// memory and reserves addresses before it finds that they do not suffice.
struct DriverFigure {
  const char* name;
  std::uint64_t (*of)(SimulatedDriver&);
};
const DriverFigure kFigures[] = {
    {"allocate", [](SimulatedDriver& gpu) { return gpu.calls(Call::allocate); }},
    {"deallocate", [](SimulatedDriver& gpu) { return gpu.calls(Call::deallocate); }},
    {"map", [](SimulatedDriver& gpu) { return gpu.calls(Call::map); }},
    {"handles", [](SimulatedDriver& gpu) { return std::uint64_t{gpu.handles()}; }},
    {"reservations", [](SimulatedDriver& gpu) { return std::uint64_t{gpu.reservations()}; }},
    {"memory in use", [](SimulatedDriver& gpu) { return std::uint64_t{gpu.dedicated_used()}; }},
};

// A private pool. An operation names it by a number. Each holder of the pool, such as a graph,
// releases it once. After the last release, the number stands for a new pool.
struct ProgramPool {
  PoolId id = {};
  int uses = 0;
  bool receives = false;  // requests go to this pool
  bool is_captured = false;
  bool receives_some = false;  // only one stream's requests go to this pool
  bool is_used_on_oom = false;
};

constexpr std::uint64_t kPools = 3;

// Finds pools that PyTorch loses. PyTorch counts the maps and unmaps of each private pool, and
// drops a released pool when the counts are equal. If one mapping was unmapped in several parts,
// the counts are equal too early, and PyTorch drops the pool while the pool still has memory.
class PoolMappings final : public Observer {
 public:
  void observe(const TraceEvent& event) override {
    Mapped& pool = pools_[event.pool];
    switch (event.action) {
      case Action::segment_alloc:
      case Action::segment_map:
        ++pool.count;
        pool.bytes += event.size;
        break;
      case Action::segment_free:
      case Action::segment_unmap:
        --pool.count;
        pool.bytes -= event.size;
        if (pool.count < 0) pool.is_lost = true;
        break;
      default: break;
    }
  }
  [[nodiscard]] bool is_lost(PoolId pool) const {
    const auto place = pools_.find(pool);
    if (place == pools_.end()) return false;
    return place->second.is_lost || (place->second.count <= 0 && place->second.bytes > 0);
  }

 private:
  struct Mapped {
    std::int64_t count = 0;
    Bytes bytes = 0;
    bool is_lost = false;
  };
  std::map<PoolId, Mapped> pools_;
};

class Comparison {
 public:
  explicit Comparison(const Program& program) : program_(program) {
    for (ProgramPool& pool : pools_) renew(pool);
    std::string settings = program.settings;
    for (const std::string& later : program.later_settings) settings += later;
    shapes_blocks_ = settings.find("roundup_power2_divisions") != std::string::npos ||
                     settings.find("max_split_size_mb") != std::string::npos;
    rounds_and_grows_ = settings.find("roundup_power2_divisions") != std::string::npos &&
                        settings.find("expandable_segments:True") != std::string::npos;
  }

  Verdict run() {
    begin();
    check_state();
    for (const Operation& operation : program_.operations) {
      if (!difference_.empty() || has_ended_) break;
      if (!carry_out(operation)) continue;
      if (std::any_of(released_.begin(), released_.end(),
                      [&](PoolId pool) { return mappings_.is_lost(pool); })) {
        has_ended_ = true;
        difference_.clear();
      }
      ++count_;
      check_state();
      if (!difference_.empty()) explain(operation);
    }
    if (difference_.empty() && !has_ended_) check_blocks();
    if (difference_.empty() && !has_ended_) check_history();
    return {difference_, count_};
  }

 private:
  // Creates both allocators. If both refuse the settings, the comparison ends without a difference.
  void begin() {
    const Outcome theirs = outcome_of([&]() -> Address {
      pytorch_ = make_pytorch(program_.memory, program_.settings);
      return 0;
    });
    const Outcome ours = outcome_of([&]() -> Address {
      native_ = make_native(program_.memory, program_.settings, mappings_);
      return 0;
    });
    note(theirs, ours);
  }

  // --- what is compared --------------------------------------------------------------------------

  // Calls `function` with both allocators, and notes a difference if the outcomes differ.
  template <typename Function>
  Outcome on_both(Function function) {
    const Outcome theirs = outcome_of([&] { return function(*pytorch_); });
    const Outcome ours = outcome_of([&] { return function(*native_); });
    note(theirs, ours);
    return theirs;
  }
  void note(const Outcome& theirs, const Outcome& ours) {
    if (theirs != ours) {
      difference_ = "they come to different ends\n    PyTorch " + theirs.to_text() +
                    "\n    native  " + ours.to_text() + "\n";
    }
    // An internal error leaves PyTorch's allocator in an undefined state.
    if (theirs.kind == Outcome::Kind::other_error) has_ended_ = true;
  }
  template <typename Function>
  void do_on_both(Function function) {
    (void)on_both([&](Side& side) -> Address {
      function(side);
      return 0;
    });
  }

  void check_state() {
    if (!difference_.empty() || has_ended_) return;
    const Statistics theirs = comparable(pytorch_->statistics());
    const Statistics ours = comparable(native_->statistics());
    if (theirs != ours) {
      difference_ = difference_of("statistics", lines_of(theirs), lines_of(ours), 0);
      if (difference_.empty()) difference_ = "statistics of private pools differ\n";
      return;
    }
    for (const auto& [name, of] : kFigures) {
      const std::uint64_t in_pytorch = of(pytorch_->gpu());
      const std::uint64_t in_native = of(native_->gpu());
      if (in_pytorch == in_native) continue;
      difference_ = std::string("the drivers differ in '") + name + "'\n    PyTorch " +
                    std::to_string(in_pytorch) + "\n    native  " + std::to_string(in_native) +
                    "\n";
      return;
    }
  }

  // Clears the peaks and sums of inactive split blocks if more than one free was deferred. PyTorch
  // completes deferred frees in the order of a hash table of pointers. This order decides when
  // split blocks become free.
  [[nodiscard]] Statistics comparable(Statistics statistics) const {
    if (deferred_ < 2) return statistics;
    for (PoolStat* const stat : {&statistics.inactive_split, &statistics.inactive_split_bytes}) {
      for (Stat* const each : {&stat->all, &stat->small_pool, &stat->large_pool}) {
        *each = {each->current, 0, 0, 0};
      }
    }
    return statistics;
  }
  void check_blocks() {
    std::vector<SegmentInfo> theirs = pytorch_->segments();
    std::vector<SegmentInfo> ours = native_->segments();
    if (deferred_ > 1) {
      forget_last_owners(theirs);
      forget_last_owners(ours);
    }
    difference_ = difference_of("segments", lines_of(theirs), lines_of(ours), 0);
  }
  static void forget_last_owners(std::vector<SegmentInfo>& segments) {
    for (SegmentInfo& segment : segments) {
      for (BlockInfo& block : segment.blocks) {
        if (block.state == BlockState::inactive) block.requested = 0;
      }
    }
  }
  void check_history() { difference_ = difference_of_events(); }
  [[nodiscard]] std::string difference_of_events() {
    std::vector<TraceEvent> theirs = pytorch_->history();
    std::vector<TraceEvent> ours = native_->history();
    // PyTorch completes deferred frees in the order of a hash table. The comparison sorts these
    // frees by address, and so ignores the order.
    for (std::vector<TraceEvent>* const events : {&theirs, &ours}) {
      if (deferred_ > 1) sort_runs(*events, Action::free_completed);
    }
    return difference_of("events", lines_of(theirs), lines_of(ours), 8);
  }
  void explain(const Operation& operation) {
    difference_ =
        "operation " + std::to_string(count_) + " (" + to_text(operation) + "): " + difference_;
    if (has_ended_) return;
    difference_ += difference_of_events();
  }

  // --- operations --------------------------------------------------------------------------------

  // Carries out one operation. Returns false if the operation makes no sense now.
  bool carry_out(const Operation& operation) {
    const auto& [first, second, third] = operation.numbers;
    switch (operation.verb) {
      case Verb::malloc: return malloc(first, stream(second));
      case Verb::malloc_at: return malloc_at(first, second, third);
      case Verb::free: return free(first);
      case Verb::record: return record(first, stream(second));
      case Verb::hold: return on_gpus([&](SimulatedDriver& gpu) { gpu.hold(stream(first)); });
      case Verb::finish: return on_gpus([&](SimulatedDriver& gpu) { gpu.finish(stream(first)); });
      case Verb::empty: return empty(first);
      case Verb::use: return use(pool(first));
      case Verb::begin: return begin(pool(first), second, false);
      case Verb::capture: return begin(pool(first), second, true);
      case Verb::end: return end(pool(first));
      case Verb::release: return release(pool(first));
      case Verb::use_on_oom: return switch_option(pool(first), PoolOption::use_on_oom, second > 0);
      case Verb::no_split: return switch_option(pool(first), PoolOption::no_split, true);
      case Verb::limit: return limit(first);
      case Verb::fault: return fault(first, second, third);
      case Verb::heal: return on_gpus([](SimulatedDriver& gpu) { gpu.clear_faults(); });
      case Verb::reset_peak: do_on_both([](Side& side) { side.reset_peak_statistics(); }); break;
      case Verb::reset_sums:
        do_on_both([](Side& side) { side.reset_accumulated_statistics(); });
        break;
      case Verb::snapshot: check_blocks(); break;
      case Verb::settings: return settings(first);
      case Verb::count: return false;
    }
    return true;
  }

  // Returns whether rounding to power-of-two divisions may make a request larger than a segment.
  // The comparison leaves such requests out: PyTorch before 2.15 reserves address space for them
  // and keeps it, while native reserves none.
  [[nodiscard]] bool may_exceed_a_segment(Bytes size) const {
    return !rules().has_expandable_reserve() && rounds_and_grows_ && size > program_.memory / 2;
  }
  bool malloc(Bytes size, StreamId on) {
    if (size == 0 || may_exceed_a_segment(size)) return false;
    const Outcome outcome = on_both([&](Side& side) { return side.malloc(size, on); });
    if (outcome.address != 0) live_.push_back(outcome.address);
    return true;
  }
  // Allocates at an address inside a free block. Does nothing in two cases. First, while a pool
  // receives requests: PyTorch would choose the pool by the current stream, and this program never
  // changes the current stream. Second, under settings that round sizes or limit splitting:
  // PyTorch's block would have another size.
  bool malloc_at(std::uint64_t which, std::uint64_t offset, Bytes size) {
    if (!pytorch_has_malloc_at() || size == 0 || receives_any() || shapes_blocks_) return false;
    constexpr Bytes kUnit = AllocatorConfig::kMinBlock;
    std::vector<BlockInfo> free;
    for (const SegmentInfo& segment : native_->segments()) {
      if (segment.stream != 0 || !segment.pool.is_default()) continue;
      // PyTorch looks only in the pool, small or large, that serves requests of this size.
      if (segment.small != (round_up(size, kUnit) <= AllocatorConfig::kSmallRequest)) continue;
      for (const BlockInfo& block : segment.blocks) {
        if (block.state == BlockState::inactive) free.push_back(block);
      }
    }
    // `native_->segments()` above added a snapshot event to native's history. This call adds the
    // same event to PyTorch's history.
    (void)pytorch_->segments();
    if (free.empty()) return false;
    const BlockInfo& block = free[which % free.size()];
    const Bytes begin = offset * kUnit % block.size;
    const Bytes taken = round_up(size, kUnit);
    // Native takes exactly the requested range. PyTorch splits the block by its usual rules, so it
    // takes the same range only if enough of the block remains behind it.
    const Bytes least_rest =
        taken > AllocatorConfig::kSmallRequest ? AllocatorConfig::kSmallRequest : kUnit;
    if (begin + taken + least_rest >= block.size) return false;
    const Outcome outcome =
        on_both([&](Side& side) { return side.malloc_at(block.address + begin, taken, 0, {}); });
    if (outcome.address != 0) live_.push_back(outcome.address);
    return true;
  }
  bool free(std::uint64_t which) {
    if (live_.empty()) return false;
    // If several free blocks have equal sizes, PyTorch 2.12 takes the block that was made first.
    // The order of deferred frees, which comes from a hash table, decides which block that is.
    const bool has_hash_order =
        rules().prefers_first_made() && !rules().prefers_older_segment() && deferred_ > 0;
    const auto place = live_.begin() + static_cast<std::ptrdiff_t>(which % live_.size());
    const Address address = *place;
    if (has_hash_order && receives_any() && recorded_.contains(address)) return false;
    live_.erase(place);
    if (recorded_.erase(address) > 0 && receives_any()) ++deferred_;
    do_on_both([&](Side& side) { side.free(address); });
    return true;
  }
  bool record(std::uint64_t which, StreamId on) {
    if (live_.empty()) return false;
    const Address address = live_[which % live_.size()];
    recorded_.insert(address);
    do_on_both([&](Side& side) { side.record_stream(address, on); });
    return true;
  }
  bool empty(std::uint64_t which) {
    const PoolId id = which == 0 ? PoolId{} : pool(which - 1).id;
    do_on_both([&](Side& side) { side.empty_cache(id); });
    return true;
  }

  bool use(ProgramPool& pool) {
    ++pool.uses;
    do_on_both([&](Side& side) { side.use_pool(pool.id); });
    return true;
  }
  // Sends requests to a pool until `end`. If `captures`, also captures a graph. Does nothing if
  // another capture is running.
  bool begin(ProgramPool& pool, std::uint64_t filter, bool captures) {
    if (pool.receives || (captures && is_capturing())) return false;
    // With use_on_oom, a pool may have to serve any stream. PyTorch fails if such a pool is limited
    // to one stream, so the pool receives the requests of all streams.
    if (pool.is_used_on_oom) filter = 0;
    pool.receives = true;
    pool.is_captured = captures;
    pool.receives_some = filter > 0;
    ++pool.uses;
    const std::optional<StreamId> only =
        filter == 0 ? std::nullopt : std::optional(stream(filter - 1));
    do_on_both([&](Side& side) {
      side.begin_allocate_to_pool(pool.id, Allocator::only_on(only));
      if (captures) side.set_capturing(true);
    });
    return true;
  }
  bool end(ProgramPool& pool) {
    if (!pool.receives) return false;
    do_on_both([&](Side& side) {
      if (pool.is_captured) side.set_capturing(false);
      side.end_allocate_to_pool(pool.id);
    });
    pool.receives = pool.is_captured = false;
    return true;
  }
  // Drops one holder of a pool. A pool that receives requests keeps at least one.
  bool release(ProgramPool& pool) {
    if (pool.uses == 0 || (pool.receives && pool.uses == 1)) return false;
    // With use_on_oom, PyTorch would take memory from the released pool and fail an internal check.
    if (pool.uses == 1 && pool.is_used_on_oom) return false;
    do_on_both([&](Side& side) { side.release_pool(pool.id); });
    if (--pool.uses == 0) {
      released_.push_back(pool.id);
      renew(pool);
    }
    return true;
  }
  bool switch_option(ProgramPool& pool, PoolOption option, bool on) {
    if (option == PoolOption::use_on_oom) {
      if (pool.receives && pool.receives_some) return false;
      if (!on && !pytorch_can_unset_use_on_oom()) return false;
      if (pool.uses > 0) pool.is_used_on_oom = on;
    }
    if (pool.uses == 0 || (option == PoolOption::no_split && !pytorch_has_no_split())) return false;
    do_on_both([&](Side& side) { side.set_pool_option(pool.id, option, on); });
    return true;
  }

  bool limit(std::uint64_t thousandths) {
    const double fraction = static_cast<double>(thousandths % 1001) / 1000;
    do_on_both([&](Side& side) { side.set_fraction(fraction); });
    return true;
  }
  bool fault(std::uint64_t which, std::uint64_t after, std::uint64_t times) {
    constexpr Call kFailing[] = {Call::allocate, Call::create, Call::map, Call::reserve};
    const Call call = kFailing[which % std::size(kFailing)];
    return on_gpus(
        [&](SimulatedDriver& gpu) { gpu.inject({call, after, times, Status::out_of_memory}); });
  }
  bool settings(std::uint64_t which) {
    if (program_.later_settings.empty()) return false;
    const std::string& made = program_.later_settings[which % program_.later_settings.size()];
    do_on_both([&](Side& side) { side.make_settings(made); });
    return true;
  }
  template <typename Function>
  bool on_gpus(Function function) {
    function(pytorch_->gpu());
    function(native_->gpu());
    return true;
  }

  // --- names -------------------------------------------------------------------------------------

  [[nodiscard]] static StreamId stream(std::uint64_t number) {
    return streams_in_order()[number % kStreams];
  }
  [[nodiscard]] ProgramPool& pool(std::uint64_t number) { return pools_[number % kPools]; }
  void renew(ProgramPool& pool) { pool = {.id = {0, ++last_pool_}}; }
  [[nodiscard]] bool receives_any() const {
    return std::any_of(std::begin(pools_), std::end(pools_),
                       [](const ProgramPool& pool) { return pool.receives; });
  }
  [[nodiscard]] bool is_capturing() const {
    return std::any_of(std::begin(pools_), std::end(pools_),
                       [](const ProgramPool& pool) { return pool.is_captured; });
  }

  const Program& program_;
  PoolMappings mappings_;
  std::unique_ptr<Side> native_;
  std::unique_ptr<Side> pytorch_;
  std::vector<Address> live_;
  std::set<Address> recorded_;  // live blocks that a second stream used
  ProgramPool pools_[kPools];
  std::uint64_t last_pool_ = 0;
  std::string difference_;
  bool has_ended_ = false;
  bool shapes_blocks_ = false;
  bool rounds_and_grows_ = false;
  int deferred_ = 0;
  std::vector<PoolId> released_;
  std::uint64_t count_ = 0;
};

}  // namespace

Verdict compare(const Program& program) { return Comparison(program).run(); }
