// The history that torch.cuda.memory._record_memory_history asks for: each GPU's last events with
// their stacks, the stacks of live blocks and segments, and annotations. The history also passes
// every event to the trackers: these are functions that PyTorch's code attaches to the allocator.
//
// Engines report events only while the history or a tracker needs them. At other times only `Call`
// runs, which costs one atomic load. The stack of a call is gathered before the engine is called,
// because gathering may take the interpreter's lock. The stack waits in a thread-local variable,
// where `observe` finds it when the engine reports the events of the call.
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plimsoll/engine_api.h"
#include "versions.h"

namespace plimsoll::live {

// A ring buffer of the most recent entries.
template <typename Entry>
class Ring {
 public:
  void set_capacity(size_t capacity) { capacity_ = capacity == 0 ? 1 : capacity; }
  void clear() {
    std::vector<Entry>().swap(entries_);  // clear() would keep the memory
    oldest_ = 0;
  }
  void add(Entry entry) {
    if (entries_.size() < capacity_) {
      entries_.push_back(std::move(entry));
    } else {
      entries_[oldest_] = std::move(entry);
      oldest_ = (oldest_ + 1) % entries_.size();
    }
  }
  [[nodiscard]] std::vector<Entry> entries() const {
    std::vector<Entry> result(entries_.begin() + static_cast<std::ptrdiff_t>(oldest_),
                              entries_.end());
    result.insert(result.end(), entries_.begin(),
                  entries_.begin() + static_cast<std::ptrdiff_t>(oldest_));
    return result;
  }

 private:
  size_t capacity_ = 1;
  size_t oldest_ = 0;
  std::vector<Entry> entries_;
};

class History {
 public:
  // Gathers the call stack before the caller calls the engine, and drops it at the end of the
  // scope. Does nothing if the history does not keep stacks of this `level`.
  class Call {
   public:
    Call(const History& history, RecordContext level)
        : gathered_(history.level_.load(std::memory_order_relaxed) >= level) {
      if (gathered_) [[unlikely]] {
        history.gather();
      }
    }
    ~Call() {
      if (gathered_) [[unlikely]] {
        drop();
      }
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    bool gathered_;
  };

  void record(const HistoryRequest& request);
  void track(Tracker tracker);
  [[nodiscard]] bool is_enabled() const { return is_enabled_.load(std::memory_order_relaxed); }
  // Returns whether the history or a tracker needs the engines' events.
  [[nodiscard]] bool is_watched() const;

  // Returns how many bytes of an event's memory lie in host memory. PyTorch's TraceEntry has no
  // field for this number. Only a tracker may call this, while it handles the event's entry.
  [[nodiscard]] static uint64_t shared_of_event();

  // The function that an engine calls for each event; `log` is the log of its device.
  static void observe(void* log, const plimsoll_event* event);
  [[nodiscard]] void* log(DeviceIndex device);
  // Adds an ANNOTATE entry with the program's note about a live block. Does nothing before PyTorch
  // 2.14.
  void add_note(DeviceIndex device, const plimsoll_event& block, const std::string& text);
  // While this object exists, the thread allocates a block at a given address inside a free block.
  // The engine may first allocate the part of the free block that lies before the address. This
  // part is the prefix, which the engine frees again afterwards.
  class Placing {
   public:
    explicit Placing(uint64_t address) { current() = {address, 0}; }
    ~Placing() { current() = {}; }
    Placing(const Placing&) = delete;
    Placing& operator=(const Placing&) = delete;

    // Returns whether a block's event is about the prefix. `is_new` says whether the event is an
    // allocation. If a block is allocated at an address other than the constructor's, it is the
    // prefix. The function then remembers this address, to recognise later events of the prefix.
    static bool is_prefix(uint64_t address, bool is_new);

   private:
    struct Places {
      uint64_t wanted = 0;
      uint64_t prefix = 0;
    };
    static Places& current();
  };
  void add_snapshot_event(DeviceIndex device, MempoolId_t pool, size_t active_bytes);

  [[nodiscard]] std::vector<TraceEntry> entries(DeviceIndex device) const;
  [[nodiscard]] Context block_context(DeviceIndex device, uint64_t address) const;
  [[nodiscard]] Context segment_context(DeviceIndex device, uint64_t address) const;

  // Returns whether a segment whose stack is kept begins at `address`.
  //
  // PyTorch keeps a segment's stack with the segment's first block. When a request splits that
  // block, the new first block has no segment stack. The history follows this rule: once the first
  // block is smaller than the segment, `note_first_block` drops the segment's stack.
  [[nodiscard]] bool is_segment(DeviceIndex device, uint64_t address) const;
  void note_first_block(DeviceIndex device, uint64_t address, uint64_t size);

  void annotate(DeviceIndex device, const std::vector<std::pair<std::string, std::string>>& values);
  [[nodiscard]] std::vector<AnnotationEntry> annotations() const;

  // Push to and pop from the calling thread's stack of compile contexts. PyTorch notes the contexts
  // in the history's entries.
  static void push_compile_context(std::string text);
  static void pop_compile_context();
  static void set_metadata(std::string text);
  static std::string metadata();

 private:
  struct Segment {
    Context context;
    uint64_t size = 0;
  };
  using Trackers = std::vector<Tracker>;

  struct Log {
    History* history = nullptr;
    DeviceIndex device = 0;
    mutable std::mutex mutex;  // protects the members below; never held while other code is called
    Ring<TraceEntry> ring;
    std::unordered_map<uint64_t, Context> blocks;
    std::unordered_map<uint64_t, Segment> segments;  // the segments whose stack is kept
  };

  void gather() const;
  static void drop();
  void add(Log& log, const plimsoll_event& event);
  void keep(Log& log, TraceEntry entry, uint64_t shared);

  std::atomic<RecordContext> level_ = RecordContext::NEVER;
  std::atomic<CreateContextFn> recorder_ = nullptr;
  std::atomic<bool> is_enabled_ = false;
  std::atomic<uint64_t> skipped_ = 0;  // a bit for each action that is not kept

  mutable std::mutex mutex_;  // protects the members below
  std::shared_ptr<const Trackers> trackers_ = std::make_shared<Trackers>();
  Ring<AnnotationEntry> annotations_;

  std::array<Log, C10_COMPILE_TIME_MAX_GPUS> logs_;
};

}  // namespace plimsoll::live
