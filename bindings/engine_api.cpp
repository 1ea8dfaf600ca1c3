#include "plimsoll/engine_api.h"

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "module.h"
#include "plimsoll/engine/engine.h"

namespace plimsoll::python {
namespace {

static_assert(PLIMSOLL_ALLOC == static_cast<int>(Action::alloc) &&
              PLIMSOLL_FREE_REQUESTED == static_cast<int>(Action::free_requested) &&
              PLIMSOLL_FREE_COMPLETED == static_cast<int>(Action::free_completed) &&
              PLIMSOLL_SEGMENT_ALLOC == static_cast<int>(Action::segment_alloc) &&
              PLIMSOLL_SEGMENT_FREE == static_cast<int>(Action::segment_free) &&
              PLIMSOLL_SEGMENT_MAP == static_cast<int>(Action::segment_map) &&
              PLIMSOLL_SEGMENT_UNMAP == static_cast<int>(Action::segment_unmap) &&
              PLIMSOLL_SNAPSHOT == static_cast<int>(Action::snapshot) &&
              PLIMSOLL_OOM == static_cast<int>(Action::oom));
static_assert(PLIMSOLL_ACTIVE_ALLOCATED == static_cast<int>(BlockState::active_allocated) &&
              PLIMSOLL_ACTIVE_PENDING_FREE == static_cast<int>(BlockState::active_pending_free) &&
              PLIMSOLL_INACTIVE == static_cast<int>(BlockState::inactive));
static_assert(PLIMSOLL_USE_ON_OOM == static_cast<int>(PoolOption::use_on_oom) &&
              PLIMSOLL_NO_SPLIT == static_cast<int>(PoolOption::no_split));

std::string& error_text() {
  thread_local std::string text;
  return text;
}

// Makes the call and returns its result as a status. No exception leaves this function.
template <typename Call>
int guarded(Call call) {
  try {
    call();
    return PLIMSOLL_SUCCESS;
  } catch (const OutOfMemory& error) {
    error_text() = error.what();
    return PLIMSOLL_OUT_OF_MEMORY;
  } catch (const HostOutOfMemory& error) {
    error_text() = error.what();
    return PLIMSOLL_OUT_OF_MEMORY;
  } catch (const UnknownAddress& error) {
    error_text() = error.what();
    return PLIMSOLL_UNKNOWN_ADDRESS;
  } catch (const std::exception& error) {
    error_text() = error.what();
  } catch (...) {
    error_text() = "an exception of an unknown type";
  }
  return PLIMSOLL_FAILED;
}

void require(bool found, Address address) {
  if (!found) throw UnknownAddress(address);
}

PoolId id_of(plimsoll_pool_id pool) { return {pool.first, pool.second}; }
plimsoll_pool_id id_of(PoolId pool) { return {pool.first, pool.second}; }

Engine& engine_of(plimsoll_engine* handle) { return *reinterpret_cast<Engine*>(handle); }

const char* last_error() { return error_text().c_str(); }

// --- blocks ------------------------------------------------------------------------------------

int allocate(plimsoll_engine* handle, std::uint64_t size, std::uint64_t stream,
             std::uint32_t context, std::uint64_t* address) {
  return guarded([&] { *address = engine_of(handle).allocate(size, stream, context); });
}

int allocate_at(plimsoll_engine* handle, std::uint64_t address, std::uint64_t size,
                std::uint64_t stream, plimsoll_pool_id pool) {
  return guarded([&] { engine_of(handle).allocate_at(address, size, stream, id_of(pool)); });
}

int release(plimsoll_engine* handle, std::uint64_t address, std::uint32_t context) {
  return guarded([&] { require(engine_of(handle).free(address, context), address); });
}

int record_stream(plimsoll_engine* handle, std::uint64_t address, std::uint64_t stream) {
  return guarded([&] { require(engine_of(handle).record_stream(address, stream), address); });
}

int locate(plimsoll_engine* handle, std::uint64_t address, plimsoll_place* place) {
  return guarded([&] {
    const std::optional<Location> found = engine_of(handle).locate(address);
    require(found.has_value(), address);
    *place = {found->block,
              found->block_size,
              found->segment,
              found->segment_size,
              found->stream,
              id_of(found->pool),
              found->is_virtual ? 1u : 0u,
              0};
  });
}

int empty_cache(plimsoll_engine* handle, plimsoll_pool_id pool) {
  return guarded([&] { engine_of(handle).empty_cache(id_of(pool)); });
}

int memory_info(plimsoll_engine* handle, std::uint64_t* free, std::uint64_t* total) {
  return guarded([&] {
    const Driver& driver = engine_of(handle).driver();
    const MemoryInfo memory = driver.memory_info();
    if (memory.total == 0) throw std::runtime_error(driver.last_error());
    *free = memory.free;
    *total = memory.total;
  });
}

void set_limit(plimsoll_engine* handle, int has_limit, std::uint64_t limit) {
  (void)guarded([&] {
    engine_of(handle).set_limit(has_limit != 0 ? std::optional<Bytes>(limit) : std::nullopt);
  });
}

std::uint64_t largest_free_block(plimsoll_engine* handle) {
  Bytes largest = 0;
  (void)guarded([&] { largest = engine_of(handle).hold()->largest_free_block(); });
  return largest;
}

// --- private pools -----------------------------------------------------------------------------

int begin_allocate_to_pool(plimsoll_engine* handle, plimsoll_pool_id pool,
                           int (*filter)(void* data, std::uint64_t stream), void* data,
                           void (*drop)(void* data)) {
  return guarded([&] {
    const std::shared_ptr<void> owner(data, [drop](void* dropped) {
      if (drop != nullptr) drop(dropped);
    });
    engine_of(handle).hold()->begin_allocate_to_pool(id_of(pool), [filter, owner](StreamId stream) {
      return filter == nullptr || filter(owner.get(), stream) != 0;
    });
  });
}

int end_allocate_to_pool(plimsoll_engine* handle, plimsoll_pool_id pool) {
  return guarded([&] { engine_of(handle).hold()->end_allocate_to_pool(id_of(pool)); });
}

int begin_graph_capture(plimsoll_engine* handle) {
  return guarded([&] { engine_of(handle).hold()->begin_graph_capture(); });
}

int end_graph_capture(plimsoll_engine* handle) {
  return guarded([&] { engine_of(handle).hold()->end_graph_capture(); });
}

int use_pool(plimsoll_engine* handle, plimsoll_pool_id pool) {
  return guarded([&] { engine_of(handle).hold()->use_pool(id_of(pool)); });
}

int release_pool(plimsoll_engine* handle, plimsoll_pool_id pool) {
  return guarded([&] { engine_of(handle).release_pool(id_of(pool)); });
}

int pool_uses(plimsoll_engine* handle, plimsoll_pool_id pool, int* uses) {
  return guarded([&] { *uses = engine_of(handle).hold()->pool_uses(id_of(pool)); });
}

int set_pool_option(plimsoll_engine* handle, plimsoll_pool_id pool, int option, int on) {
  return guarded([&] {
    engine_of(handle).set_pool_option(id_of(pool), static_cast<PoolOption>(option), on != 0);
  });
}

// --- results -----------------------------------------------------------------------------------

plimsoll_stat stat_of(const Stat& stat) {
  return {stat.current, stat.peak, stat.allocated, stat.freed};
}

plimsoll_pool_stat stat_of(const PoolStat& stat) {
  return {stat_of(stat.all), stat_of(stat.small_pool), stat_of(stat.large_pool)};
}

void statistics(plimsoll_engine* handle, plimsoll_statistics* result) {
  (void)guarded([&] {
    const Statistics now = engine_of(handle).statistics();
    *result = {stat_of(now.allocation),
               stat_of(now.segment),
               stat_of(now.active),
               stat_of(now.inactive_split),
               stat_of(now.allocated_bytes),
               stat_of(now.reserved_bytes),
               stat_of(now.active_bytes),
               stat_of(now.inactive_split_bytes),
               stat_of(now.requested_bytes),
               stat_of(now.oversize_allocations),
               stat_of(now.oversize_segments),
               now.num_alloc_retries,
               now.num_ooms,
               now.num_sync_all_streams,
               now.num_device_alloc,
               now.num_device_free,
               now.num_oom_rejections,
               now.max_split_size};
  });
}

void reset_peak_statistics(plimsoll_engine* handle) {
  (void)guarded([&] { engine_of(handle).reset_peak_statistics(); });
}

void reset_accumulated_statistics(plimsoll_engine* handle) {
  (void)guarded([&] { engine_of(handle).reset_accumulated_statistics(); });
}

int segments(plimsoll_engine* handle, void (*visit)(void* data, const plimsoll_segment*),
             void* data) {
  return guarded([&] {
    for (const SegmentInfo& segment : engine_of(handle).segments()) {
      std::vector<plimsoll_block> blocks;
      blocks.reserve(segment.blocks.size());
      for (const BlockInfo& block : segment.blocks) {
        blocks.push_back({block.address, block.size, block.requested,
                          static_cast<std::uint32_t>(block.state), 0});
      }
      const plimsoll_segment told{
          segment.address,     segment.total_size,      segment.stream,
          id_of(segment.pool), segment.small ? 1u : 0u, segment.expandable ? 1u : 0u,
          blocks.size(),       blocks.data(),           segment.number};
      visit(data, &told);
    }
  });
}

class Listener final : public Observer {
 public:
  using Function = void (*)(void* data, const plimsoll_event*);

  Listener(Function function, void* data) : function_(function), data_(data) {}
  void observe(const TraceEvent& event) override {
    const plimsoll_event told{event.address,
                              event.size,
                              event.stream,
                              id_of(event.pool),
                              event.time_us,
                              static_cast<std::uint32_t>(event.action),
                              0,
                              event.shared};
    function_(data_, &told);
  }

 private:
  Function function_;
  void* data_;
};

void observe(plimsoll_engine* handle, Listener::Function function, void* data) {
  (void)guarded([&] {
    engine_of(handle).listen(function == nullptr ? nullptr
                                                 : std::make_unique<Listener>(function, data));
  });
}

// --- other GPUs and processes ------------------------------------------------------------------

int enable_peer(plimsoll_engine* handle, int device) {
  return guarded([&] {
    Driver& driver = engine_of(handle).driver();
    const Status status = driver.enable_peer(device);
    if (status != Status::success) {
      throw DriverError("let another GPU use this one's memory", status, driver.last_error());
    }
  });
}

int export_memory(plimsoll_engine* handle, std::uint64_t address, std::uint64_t* offset,
                  int* descriptors, std::uint64_t* sizes, std::size_t capacity,
                  std::size_t* count) {
  return guarded([&] {
    const ExportedMemory memory = engine_of(handle).export_memory(address);
    *offset = memory.offset;
    *count = memory.pieces.size();
    for (std::size_t i = 0; i < memory.pieces.size(); ++i) {
      if (i < capacity) {
        descriptors[i] = memory.pieces[i].descriptor;
        sizes[i] = memory.pieces[i].size;
      } else {
        close(memory.pieces[i].descriptor);
      }
    }
  });
}

int import_memory(plimsoll_engine* handle, const int* descriptors, const std::uint64_t* sizes,
                  std::size_t count, std::uint64_t* address) {
  return guarded([&] {
    std::vector<ImportedMemory::Piece> pieces;
    for (std::size_t i = 0; i < count; ++i) pieces.push_back({descriptors[i], sizes[i]});
    *address = engine_of(handle).imported().open(pieces);
  });
}

int close_memory(plimsoll_engine* handle, std::uint64_t address) {
  return guarded([&] { require(engine_of(handle).imported().close(address), address); });
}

// --- host memory -------------------------------------------------------------------------------

int host_malloc(plimsoll_engine* handle, std::uint64_t size, plimsoll_pool_id pool,
                std::uint64_t* address) {
  return guarded([&] { *address = engine_of(handle).host_pool().allocate(size, id_of(pool)); });
}

int host_free(std::uint64_t address) {
  return guarded([&] {
    HostPool* const pool = HostPool::of_process_if_open();
    require(pool != nullptr && pool->free(address), address);
  });
}

int host_record(plimsoll_engine* handle, std::uint64_t address, std::uint64_t stream) {
  bool is_known = false;
  const int status = guarded([&] {
    HostPool* const pool = HostPool::of_process_if_open();
    is_known = pool != nullptr && pool->record(address, stream, engine_of(handle).driver());
  });
  return status != PLIMSOLL_SUCCESS || is_known ? status : PLIMSOLL_UNKNOWN_ADDRESS;
}

// Calls the host pool; does nothing if there is none.
template <typename Call>
int with_host_pool(Call call) {
  return guarded([&] {
    if (HostPool* const pool = HostPool::of_process_if_open()) call(*pool);
  });
}

int host_empty_cache() {
  return with_host_pool([](HostPool& pool) { pool.empty_cache(); });
}

int host_begin_allocate_to_pool(plimsoll_engine* handle, plimsoll_pool_id pool) {
  return guarded([&] { engine_of(handle).host_pool().begin_allocate_to_pool(id_of(pool)); });
}

int host_end_allocate_to_pool() {
  return with_host_pool([](HostPool& pool) { pool.end_allocate_to_pool(); });
}

int host_release_pool(plimsoll_pool_id id) {
  return with_host_pool([id](HostPool& pool) { pool.release_pool(id_of(id)); });
}

void host_statistics(plimsoll_host_statistics* result) {
  *result = {};
  const auto time_of = [](const CallTime& time) {
    return plimsoll_call_time{time.count, time.total_us, time.max_us, time.min_us};
  };
  (void)with_host_pool([&](const HostPool& pool) {
    const HostStatistics now = pool.statistics();
    *result = {stat_of(now.active),        stat_of(now.active_bytes),
               stat_of(now.segment),       stat_of(now.reserved_bytes),
               time_of(now.allocate_time), time_of(now.deallocate_time)};
  });
}

void host_reset_peak_statistics() {
  (void)with_host_pool([](HostPool& pool) { pool.reset_peak_statistics(); });
}

void host_reset_accumulated_statistics() {
  (void)with_host_pool([](HostPool& pool) { pool.reset_accumulated_statistics(); });
}

constexpr plimsoll_engine_api kEngineApi{
    PLIMSOLL_ENGINE_API_VERSION,
    last_error,
    allocate,
    allocate_at,
    release,
    record_stream,
    locate,
    empty_cache,
    memory_info,
    set_limit,
    largest_free_block,
    begin_allocate_to_pool,
    end_allocate_to_pool,
    begin_graph_capture,
    end_graph_capture,
    use_pool,
    release_pool,
    pool_uses,
    set_pool_option,
    statistics,
    reset_peak_statistics,
    reset_accumulated_statistics,
    segments,
    observe,
    enable_peer,
    export_memory,
    import_memory,
    close_memory,
    host_malloc,
    host_free,
    host_record,
    host_empty_cache,
    host_begin_allocate_to_pool,
    host_end_allocate_to_pool,
    host_release_pool,
    host_statistics,
    host_reset_peak_statistics,
    host_reset_accumulated_statistics,
};

}  // namespace

void bind_engine_api(nanobind::module_& module) {
  module.def(
      "engine_api", [] { return reinterpret_cast<std::uintptr_t>(&kEngineApi); },
      "The address of the table of C functions in plimsoll/engine_api.h.");
}

}  // namespace plimsoll::python
