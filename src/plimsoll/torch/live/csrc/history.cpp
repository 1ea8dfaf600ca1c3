#include "history.h"

#include <chrono>
#include <stack>

#include "device.h"

namespace plimsoll::live {

namespace {

thread_local Context call_context;
thread_local uint64_t shared_bytes = 0;
thread_local std::stack<std::string> compile_contexts;
thread_local std::string thread_metadata;

constexpr std::pair<const char*, TraceEntry::Action> kActions[] = {
    {"alloc", TraceEntry::ALLOC},
    {"free_requested", TraceEntry::FREE_REQUESTED},
    {"free_completed", TraceEntry::FREE_COMPLETED},
    {"segment_alloc", TraceEntry::SEGMENT_ALLOC},
    {"segment_free", TraceEntry::SEGMENT_FREE},
    {"segment_map", TraceEntry::SEGMENT_MAP},
    {"segment_unmap", TraceEntry::SEGMENT_UNMAP},
    {"snapshot", TraceEntry::SNAPSHOT},
    {"oom", TraceEntry::OOM},
#if PLIMSOLL_TORCH_AT_LEAST(14)
    {"annotate", TraceEntry::ANNOTATE},
#endif
};

// The engine's action codes must equal PyTorch's.
static_assert(static_cast<int>(TraceEntry::ALLOC) == PLIMSOLL_ALLOC);
static_assert(static_cast<int>(TraceEntry::SEGMENT_UNMAP) == PLIMSOLL_SEGMENT_UNMAP);
static_assert(static_cast<int>(TraceEntry::OOM) == PLIMSOLL_OOM);

uint64_t bit(TraceEntry::Action action) { return uint64_t{1} << static_cast<int>(action); }

int64_t now_us() {
  const auto time = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(time).count();
}

}  // namespace

void History::gather() const {
  const CreateContextFn recorder = recorder_.load();
  call_context = recorder != nullptr ? recorder() : nullptr;
}

void History::drop() { call_context.reset(); }

uint64_t History::shared_of_event() { return shared_bytes; }

void History::record(const HistoryRequest& request) {
  TORCH_CHECK(request.when == RecordContext::NEVER || request.recorder != nullptr,
              "stacks cannot be recorded without a function that gathers them");
  uint64_t skipped = 0;
  for (const auto& name : request.skipped_actions) {
    for (const auto& [text, action] : kActions) {
      if (name == text) skipped |= bit(action);
    }
  }
  const bool clears = !request.is_enabled || request.clears;
  {
    const std::scoped_lock lock(mutex_);
    annotations_.set_capacity(request.max_entries);
    if (clears) annotations_.clear();
  }
  for (auto& log : logs_) {
    const std::scoped_lock lock(log.mutex);
    log.ring.set_capacity(request.max_entries);
    if (clears) log.ring.clear();
    if (!request.is_enabled) {  // without events, the log would never learn that blocks are freed
      log.blocks.clear();
      log.segments.clear();
    }
  }
  skipped_ = skipped;
  recorder_ = request.is_enabled ? request.recorder : nullptr;
  level_ = request.is_enabled ? request.when : RecordContext::NEVER;
  is_enabled_ = request.is_enabled;
}

void History::track(Tracker tracker) {
  const std::scoped_lock lock(mutex_);
  auto trackers = std::make_shared<Trackers>(*trackers_);
  trackers->push_back(std::move(tracker));
  trackers_ = std::move(trackers);
}

bool History::is_watched() const {
  if (is_enabled()) return true;
  const std::scoped_lock lock(mutex_);
  return !trackers_->empty();
}

void* History::log(DeviceIndex device) {
  auto& log = logs_[static_cast<size_t>(device)];
  log.history = this;
  log.device = device;
  return &log;
}

void History::observe(void* data, const plimsoll_event* event) {
  auto* log = static_cast<Log*>(data);
  log->history->add(*log, *event);
}

void History::add_snapshot_event(DeviceIndex device, MempoolId_t pool, size_t active_bytes) {
  if (!is_watched()) return;
  plimsoll_event event{};
  event.action = PLIMSOLL_SNAPSHOT;
  event.size = active_bytes;
  event.pool = engine_pool(pool);
  event.time_us = now_us();
  add(logs_[static_cast<size_t>(device)], event);
}

void History::add(Log& log, const plimsoll_event& event) {
  const auto action = static_cast<TraceEntry::Action>(event.action);
  Context context = call_context;
  {
    const std::scoped_lock lock(log.mutex);
    switch (action) {
      case TraceEntry::ALLOC:
        if (context != nullptr) log.blocks[event.address] = context;
        break;
      case TraceEntry::SEGMENT_ALLOC:
      case TraceEntry::SEGMENT_MAP:
        if (context != nullptr) log.segments[event.address] = {context, event.size};
        break;
      case TraceEntry::SEGMENT_FREE:
      case TraceEntry::SEGMENT_UNMAP: {
        const auto segment = log.segments.find(event.address);
        if (segment == log.segments.end()) break;
        if (context == nullptr) context = std::move(segment->second.context);
        log.segments.erase(segment);
        break;
      }
      case TraceEntry::FREE_REQUESTED:
      case TraceEntry::FREE_COMPLETED: {
        const auto block = log.blocks.find(event.address);
        if (block == log.blocks.end()) break;
        if (context == nullptr) context = block->second;
        if (action == TraceEntry::FREE_COMPLETED) log.blocks.erase(block);
        break;
      }
      default: break;
    }
  }
  if (level_.load() < RecordContext::ALLOC) context.reset();
  auto entry =
      make_entry(action, log.device, event.address, event.size, as_pointer(event.stream),
                 torch_pool(event.pool), event.time_us, std::move(context),
                 compile_contexts.empty() ? "N/A" : compile_contexts.top(), thread_metadata);
  const bool is_of_block = action == TraceEntry::ALLOC || action == TraceEntry::FREE_REQUESTED ||
                           action == TraceEntry::FREE_COMPLETED;
  if (is_of_block && Placing::is_prefix(event.address, action == TraceEntry::ALLOC)) {
    set_internal(entry, "mallocWithAddress");
  }
  keep(log, std::move(entry), event.shared);
}

History::Placing::Places& History::Placing::current() {
  thread_local Places places;
  return places;
}

bool History::Placing::is_prefix(uint64_t address, bool is_new) {
  Places& places = current();
  if (places.wanted == 0) return false;
  if (is_new && address != places.wanted) places.prefix = address;
  return places.prefix != 0 && address == places.prefix;
}

void History::add_note([[maybe_unused]] DeviceIndex device,
                       [[maybe_unused]] const plimsoll_event& block,
                       [[maybe_unused]] const std::string& text) {
#if PLIMSOLL_TORCH_AT_LEAST(14)
  Context context = level_.load() < RecordContext::ALLOC ? nullptr : call_context;
  keep(logs_[static_cast<size_t>(device)],
       make_entry(TraceEntry::ANNOTATE, device, block.address, block.size, as_pointer(block.stream),
                  torch_pool(block.pool), now_us(), std::move(context),
                  compile_contexts.empty() ? "N/A" : compile_contexts.top(), text),
       0);
#endif
}

// Calls the trackers with an event. Then adds the event to the history, if the history is on and
// the program has not excluded events of this kind.
void History::keep(Log& log, TraceEntry entry, uint64_t shared) {
  std::shared_ptr<const Trackers> trackers;
  {
    const std::scoped_lock lock(mutex_);
    trackers = trackers_;
  }
  shared_bytes = shared;
  for (const auto& tracker : *trackers) tracker(entry);
  shared_bytes = 0;
  if (is_enabled() && (skipped_.load() & bit(entry.action_)) == 0) {
    const std::scoped_lock lock(log.mutex);
    log.ring.add(std::move(entry));
  }
}

std::vector<TraceEntry> History::entries(DeviceIndex device) const {
  const auto& log = logs_[static_cast<size_t>(device)];
  const std::scoped_lock lock(log.mutex);
  return log.ring.entries();
}

Context History::block_context(DeviceIndex device, uint64_t address) const {
  const auto& log = logs_[static_cast<size_t>(device)];
  const std::scoped_lock lock(log.mutex);
  const auto found = log.blocks.find(address);
  return found == log.blocks.end() ? nullptr : found->second;
}

Context History::segment_context(DeviceIndex device, uint64_t address) const {
  const auto& log = logs_[static_cast<size_t>(device)];
  const std::scoped_lock lock(log.mutex);
  const auto found = log.segments.find(address);
  return found == log.segments.end() ? nullptr : found->second.context;
}

bool History::is_segment(DeviceIndex device, uint64_t address) const {
  const auto& log = logs_[static_cast<size_t>(device)];
  const std::scoped_lock lock(log.mutex);
  return log.segments.contains(address);
}

void History::note_first_block(DeviceIndex device, uint64_t address, uint64_t size) {
  auto& log = logs_[static_cast<size_t>(device)];
  const std::scoped_lock lock(log.mutex);
  const auto found = log.segments.find(address);
  if (found != log.segments.end() && size < found->second.size) log.segments.erase(found);
}

void History::annotate(DeviceIndex device,
                       const std::vector<std::pair<std::string, std::string>>& values) {
  AnnotationEntry entry(device, 0);
  entry.time_.t_ = now_us();
  for (const auto& [name, value] : values) entry.recordUserMetadata(name, value);
  const std::scoped_lock lock(mutex_);
  annotations_.add(std::move(entry));
}

std::vector<AnnotationEntry> History::annotations() const {
  const std::scoped_lock lock(mutex_);
  return annotations_.entries();
}

void History::push_compile_context(std::string text) { compile_contexts.push(std::move(text)); }

void History::pop_compile_context() {
  if (!compile_contexts.empty()) compile_contexts.pop();
}

void History::set_metadata(std::string text) { thread_metadata = std::move(text); }
std::string History::metadata() { return thread_metadata; }

}  // namespace plimsoll::live
