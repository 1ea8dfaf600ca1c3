#include "plimsoll/driver/cuda.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>

#include "plimsoll/driver/cuda_errors.h"
#include "plimsoll/driver/host_memory.h"

namespace plimsoll {
namespace {

using cuda::kSuccess;
using cuda::Result;

// A thread's last error. The text is an array, not a string, because at process exit a thread may
// call the driver after its strings are destroyed.
struct LastError {
  std::array<char, 1024> text;
  std::size_t length;
};
thread_local LastError last_error_of_thread{};

Status refuse(Status status, std::string_view reason) {
  LastError& last = last_error_of_thread;
  last.length = reason.copy(last.text.data(), last.text.size());
  return status;
}

void add_to_last_error(std::string_view more) {
  LastError& last = last_error_of_thread;
  last.length += more.copy(last.text.data() + last.length, last.text.size() - last.length);
}

Status refuse_virtual_memory() {
  return refuse(Status::not_supported,
                "this GPU or its driver has no virtual memory management in granules of " +
                    format_bytes(kGranule));
}

Status refuse_event() {
  return refuse(Status::invalid_value, "the event was never recorded, or was destroyed");
}

bool is_granular(Address address, Bytes size) {
  return size > 0 && address % kGranule == 0 && size % kGranule == 0;
}

std::string range_text(Bytes size, Address address) {
  return format_bytes(size) + " at " + format_address(address);
}

cuda::Stream stream_of(StreamId stream) { return reinterpret_cast<cuda::Stream>(stream); }
cuda::Event event_of(Event event) { return reinterpret_cast<cuda::Event>(event); }

[[noreturn]] void stop(const cuda::Api& api, const std::string& what, Result result) {
  throw cuda::Unavailable(what + " failed: " + cuda::explain(api, result));
}

std::string no_such_device(int device, int count) {
  const std::string known =
      count == 1 ? "1 GPU, number 0"
                 : std::to_string(count) + " GPUs, numbers 0 to " + std::to_string(count - 1);
  return "there is no GPU " + std::to_string(device) + ": the driver shows " + known +
         " (CUDA_VISIBLE_DEVICES selects which)";
}

}  // namespace

// While a Scope lives, the primary context is current and the thread may make calls that a capture
// in another thread would forbid: allocating, freeing, querying and synchronizing. Every driver
// call uses a Scope, because one rule is simpler than a list of calls. A Scope costs only two
// writes to a thread-local variable.
class CudaDriver::Scope {
 public:
  explicit Scope(const CudaDriver& driver) : api_(driver.api_) {
    cuda::Context current = nullptr;
    result_ = api_.context_get_current(&current);
    if (result_ == kSuccess && current != driver.context_) {
      result_ = api_.context_push(driver.context_);
      pushed_ = result_ == kSuccess;
    }
    if (result_ == kSuccess) {
      result_ = api_.thread_exchange_capture_mode(&capture_mode_);
      relaxed_ = result_ == kSuccess;
    }
  }
  ~Scope() {
    if (relaxed_) api_.thread_exchange_capture_mode(&capture_mode_);
    if (pushed_) {
      cuda::Context popped = nullptr;
      api_.context_pop(&popped);
    }
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  template <typename Body>
  Result run(Body body) const {
    return result_ == kSuccess ? body() : result_;
  }

 private:
  const cuda::Api& api_;
  Result result_ = kSuccess;
  int capture_mode_ = cuda::kRelaxedCapture;
  bool pushed_ = false;
  bool relaxed_ = false;
};

template <typename What>
Status CudaDriver::report(Result result, What what) const {
  if (result == kSuccess) return Status::success;
  if (result == cuda::kNotReady) return Status::not_ready;
  return refuse(cuda::status_of(result),
                std::string(what()) + " failed: " + cuda::explain(api_, result));
}

template <typename Body, typename What>
Status CudaDriver::call(Body body, What what) const {
  return report(Scope(*this).run(body), what);
}

template <typename Body, typename What>
Status CudaDriver::finish(Body body, What what) const {
  const Result result = Scope(*this).run(body);
  if (cuda::status_of(result) == Status::driver_gone) return Status::success;
  return report(result, what);
}

class CudaDriver::Locked {
 public:
  Locked(std::atomic<Bytes>& sum, Bytes size) : sum_(sum), size_(size) { sum_ += size_; }
  ~Locked() { sum_ -= size_; }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  std::atomic<Bytes>& sum_;
  Bytes size_;
};

// --- the device --------------------------------------------------------------------------------

CudaDriver::CudaDriver(int device, const cuda::Api& api) : api_(api) {
  if (const Result result = api_.init(0); result != kSuccess) {
    stop(api_, "the NVIDIA driver does not start: cuInit", result);
  }
  int count = 0;
  if (const Result result = api_.device_get_count(&count); result != kSuccess) {
    stop(api_, "GPUs cannot be counted: cuDeviceGetCount", result);
  }
  if (device < 0 || device >= count) throw cuda::Unavailable(no_such_device(device, count));
  const std::string refused = "GPU " + std::to_string(device) + " cannot be used: ";
  if (const Result result = api_.device_get(&device_, device); result != kSuccess) {
    stop(api_, refused + "cuDeviceGet", result);
  }
  find_properties();
  accessors_.push_back(device_);
  if (const Result result = api_.primary_context_retain(&context_, device_); result != kSuccess) {
    stop(api_, refused + "cuDevicePrimaryCtxRetain", result);
  }
}

CudaDriver::~CudaDriver() {
  static_cast<void>(Scope(*this).run([&] {
    for (const cuda::Event event : idle_events_) api_.event_destroy(event);
    for (const Event event : lent_events_) api_.event_destroy(event_of(event));
    return kSuccess;
  }));
  api_.primary_context_release(device_);
}

// Returns an attribute of the device; 0 if an older driver does not know it.
int CudaDriver::attribute(cuda::Attribute attribute) const {
  int value = 0;
  return api_.device_get_attribute(&value, attribute, device_) == kSuccess ? value : 0;
}

bool CudaDriver::fits_granule(const cuda::AllocationProperties& properties) const {
  std::size_t granularity = 0;
  return api_.mem_get_granularity(&granularity, &properties, cuda::kMinimumGranularity) ==
             kSuccess &&
         granularity > 0 && kGranule % granularity == 0;
}

void CudaDriver::find_properties() {
  if (!api_.has_virtual_memory() || attribute(cuda::Attribute::virtual_memory) == 0) return;
  dedicated_.location = {cuda::LocationType::device, device_};
  if (attribute(cuda::Attribute::posix_handles) != 0) {
    dedicated_.handle_types = cuda::kPosixFileDescriptor;
  }
  if (attribute(cuda::Attribute::gpu_direct_rdma_with_virtual_memory) != 0) {
    dedicated_.gpu_direct_rdma = 1;
  }
  has_virtual_memory_ = fits_granule(dedicated_);

  const auto offer_host = [&](cuda::Location location, int handle_types) {
    cuda::AllocationProperties host;
    host.location = location;
    host.handle_types = handle_types;
    if (fits_granule(host)) shared_.push_back(host);
  };
  if (attribute(cuda::Attribute::host_numa_virtual_memory) != 0) {
    // CUDA returns -1 on a machine with a single NUMA node.
    const int node = std::max(0, attribute(cuda::Attribute::host_numa_id));
    offer_host({cuda::LocationType::host_numa, node}, dedicated_.handle_types);
  }
  if (attribute(cuda::Attribute::host_virtual_memory) != 0) {
    offer_host({cuda::LocationType::host, 0}, 0);  // CUDA cannot export this kind of memory
  }
}

// --- whole allocations -------------------------------------------------------------------------

std::string CudaDriver::free_memory() const {
  const MemoryInfo memory = memory_info();
  if (memory.total == 0) return {};
  return "; " + format_bytes(memory.free) + " of " + format_bytes(memory.total) +
         " are free on the card";
}

Status CudaDriver::allocate(Bytes size, Address& address) {
  cuda::DevicePointer pointer = 0;
  const Status status = call([&] { return api_.mem_alloc(&pointer, size); },
                             [&] { return "cuMemAlloc of " + format_bytes(size); });
  if (status == Status::success) address = pointer;
  if (status == Status::out_of_memory) add_to_last_error(free_memory());
  return status;
}

Status CudaDriver::deallocate(Address address) {
  return finish([&] { return api_.mem_free(address); },
                [&] { return "cuMemFree at " + format_address(address); });
}

// Forgets the memory, then releases it. It is forgotten first, because another thread may get the
// same handle or address as soon as the driver has released it. The driver is called outside the
// lock, because the call may take long.
template <typename Release>
Status CudaDriver::forget_locked(LockedMemory& memory, std::uint64_t key, Release release) {
  LockedMemory::node_type forgotten;
  {
    const std::lock_guard lock(mappings_mutex_);
    forgotten = memory.extract(key);
  }
  const Status status = release();
  if (status != Status::success && !forgotten.empty()) {
    const std::lock_guard lock(mappings_mutex_);
    memory.insert(std::move(forgotten));
  }
  return status;
}

// --- host memory -------------------------------------------------------------------------------

Status CudaDriver::allocate_host(Bytes size, Address& address) {
  void* pointer = nullptr;
  const Status status = call(
      [&] {
        return api_.mem_host_alloc(&pointer, size,
                                   cuda::kPortableHostMemory | cuda::kMappedHostMemory);
      },
      [&] { return "cuMemHostAlloc of " + format_bytes(size); });
  if (status != Status::success) return status;
  address = reinterpret_cast<Address>(pointer);
  const std::lock_guard lock(mappings_mutex_);
  host_allocations_.emplace(address, std::make_shared<Locked>(locked_bytes_, size));
  return status;
}

Status CudaDriver::deallocate_host(Address address) {
  return forget_locked(host_allocations_, address, [&] {
    return finish([&] { return api_.mem_free_host(reinterpret_cast<void*>(address)); },
                  [&] { return "cuMemFreeHost at " + format_address(address); });
  });
}

MemoryInfo CudaDriver::shared_info() const {
  const MemoryInfo host = host_memory();
  const Bytes total = host.total / 2;
  const Bytes locked = std::min(total, locked_bytes_.load());
  return {std::min(total - locked, host.free), total};
}

// --- virtual memory ----------------------------------------------------------------------------

Status CudaDriver::reserve(Bytes size, Address& address) {
  if (!has_virtual_memory_) return refuse_virtual_memory();
  cuda::DevicePointer pointer = 0;
  const Status status =
      call([&] { return api_.mem_address_reserve(&pointer, size, kGranule, 0, 0); },
           [&] { return "cuMemAddressReserve of " + format_bytes(size) + " of addresses"; });
  if (status == Status::success) address = pointer;
  return status;
}

Status CudaDriver::unreserve(Address address, Bytes size) {
  if (!has_virtual_memory_) return refuse_virtual_memory();
  const std::lock_guard lock(mappings_mutex_);
  const auto mapping = mappings_.lower_bound(address);
  if (mapping != mappings_.end() && mapping->first < address + size) {
    return refuse(Status::invalid_value, "memory is still mapped in " + range_text(size, address));
  }
  return finish([&] { return api_.mem_address_free(address, size); },
                [&] { return "cuMemAddressFree of " + range_text(size, address); });
}

Status CudaDriver::create(Bytes size, Tier tier, Handle& handle) {
  if (!has_virtual_memory_) return refuse_virtual_memory();
  const bool dedicated = tier == Tier::dedicated;
  const std::span places = dedicated ? std::span<const cuda::AllocationProperties>(&dedicated_, 1)
                                     : std::span<const cuda::AllocationProperties>(shared_);
  cuda::MemoryHandle made = 0;
  const Status status = call(
      [&] {
        Result result = cuda::kNotSupported;
        for (const cuda::AllocationProperties& place : places) {
          result = api_.mem_create(&made, size, &place, 0);
          if (result == kSuccess) break;
        }
        return result;
      },
      [&] {
        return "cuMemCreate of " + format_bytes(size) + (dedicated ? "" : " of host memory");
      });
  if (status == Status::success) handle = made;
  if (status == Status::success && !dedicated) {
    const std::lock_guard lock(mappings_mutex_);
    locked_handles_.emplace(handle, std::make_shared<Locked>(locked_bytes_, size));
  }
  if (status == Status::out_of_memory && dedicated) add_to_last_error(free_memory());
  return status;
}

Status CudaDriver::release(Handle handle) {
  if (!has_virtual_memory_) return refuse_virtual_memory();
  return forget_locked(locked_handles_, handle, [&] {
    return finish([&] { return api_.mem_release(handle); }, [] { return "cuMemRelease"; });
  });
}

Status CudaDriver::map(Address address, Bytes size, Handle handle) {
  if (!has_virtual_memory_) return refuse_virtual_memory();
  const std::lock_guard lock(mappings_mutex_);
  const Status status = call([&] { return api_.mem_map(address, size, 0, handle, 0); },
                             [&] { return "cuMemMap of " + range_text(size, address); });
  if (status != Status::success) return status;
  const auto locked = locked_handles_.find(handle);
  mappings_.emplace(
      address, Mapping{size, false, locked == locked_handles_.end() ? nullptr : locked->second});
  return status;
}

Result CudaDriver::set_access(Range range, const std::vector<cuda::Device>& devices,
                              cuda::Access access) const {
  std::vector<cuda::AccessDescription> descriptions;
  for (const cuda::Device device : devices) {
    descriptions.push_back({{cuda::LocationType::device, device}, access});
  }
  return api_.mem_set_access(range.address, range.size, descriptions.data(), descriptions.size());
}

Status CudaDriver::set_access(Address address, Bytes size) {
  if (!has_virtual_memory_) return refuse_virtual_memory();
  const std::lock_guard lock(mappings_mutex_);
  const auto begin = mappings_.lower_bound(address);
  const auto end = mappings_.lower_bound(address + size);
  return call(
      [&] {
        const Result result = set_access({address, size}, accessors_, cuda::Access::read_write);
        for (auto it = begin; it != end; ++it) {
          if (it->second.accessible) continue;
          // CUDA may have given access to some devices before it refused one.
          if (result != kSuccess) {
            set_access({it->first, it->second.size}, accessors_, cuda::Access::none);
          }
          it->second.accessible = result == kSuccess;
        }
        return result;
      },
      [&] {
        return "cuMemSetAccess to " + range_text(size, address) + " for " +
               std::to_string(accessors_.size()) + " GPU(s)";
      });
}

Status CudaDriver::unmap(Address address, Bytes size) {
  if (!has_virtual_memory_) return refuse_virtual_memory();
  const std::lock_guard lock(mappings_mutex_);
  const auto begin = mappings_.lower_bound(address);
  const auto end = mappings_.lower_bound(address + size);
  const auto end_of = [](Mappings::const_iterator mapping) {
    return mapping->first + mapping->second.size;
  };
  if (!is_granular(address, size) || begin == end) {
    return refuse(Status::invalid_value, "nothing is mapped in " + range_text(size, address));
  }
  if (end_of(std::prev(end)) > address + size ||
      (begin != mappings_.begin() && end_of(std::prev(begin)) > address)) {
    return refuse(Status::invalid_value, "a mapping lies partly in " + range_text(size, address));
  }
  Bytes mapped = 0;
  for (auto it = begin; it != end; ++it) mapped += it->second.size;
  const Address last = end_of(std::prev(end));
  const bool has_holes = last - begin->first != mapped;
  const Status status = finish(
      [&] { return has_holes ? unmap_each(begin, end) : api_.mem_unmap(begin->first, mapped); },
      [&] { return "cuMemUnmap of " + range_text(size, address); });
  if (status == Status::success) mappings_.erase(begin, end);
  return status;
}

// Unmaps one mapping at a time, because cuMemUnmap accepts no range with holes. If CUDA refuses
// to unmap a mapping, maps the earlier mappings again. The function holds a reference to each
// handle until it returns. Without this reference, the unmapping would destroy the memory of a
// handle that has been released.
Result CudaDriver::unmap_each(Mappings::const_iterator begin, Mappings::const_iterator end) const {
  std::vector<cuda::MemoryHandle> held;
  Result result = kSuccess;
  for (auto it = begin; it != end && result == kSuccess; ++it) {
    cuda::MemoryHandle handle = 0;
    result = api_.mem_retain(&handle, reinterpret_cast<void*>(it->first));
    if (result == kSuccess) held.push_back(handle);
  }
  auto unmapped = begin;
  while (result == kSuccess && unmapped != end) {
    result = api_.mem_unmap(unmapped->first, unmapped->second.size);
    if (result == kSuccess) ++unmapped;
  }
  if (result != kSuccess) {
    auto handle = held.begin();
    for (auto it = begin; it != unmapped; ++it, ++handle) {
      const auto& [address, mapping] = *it;
      api_.mem_map(address, mapping.size, 0, *handle, 0);
      if (!mapping.accessible) continue;
      set_access({address, mapping.size}, accessors_, cuda::Access::read_write);
    }
  }
  for (const cuda::MemoryHandle handle : held) api_.mem_release(handle);
  return result;
}

Status CudaDriver::export_handle(Handle handle, int& descriptor) {
  if (!has_virtual_memory_) return refuse_virtual_memory();
  int exported = -1;
  const Status status =
      call([&] { return api_.mem_export(&exported, handle, cuda::kPosixFileDescriptor, 0); },
           [] { return "cuMemExportToShareableHandle"; });
  if (status == Status::success) descriptor = exported;
  return status;
}

Status CudaDriver::import_handle(int descriptor, Handle& handle) {
  if (!has_virtual_memory_) return refuse_virtual_memory();
  cuda::MemoryHandle imported = 0;
  void* const shareable = reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor));
  const Status status = call(
      [&] { return api_.mem_import(&imported, shareable, cuda::kPosixFileDescriptor); },
      [&] { return "cuMemImportFromShareableHandle of descriptor " + std::to_string(descriptor); });
  if (status == Status::success) handle = imported;
  return status;
}

// --- peers -------------------------------------------------------------------------------------

// Returns the fewest ranges that contain all accessible mappings and nothing else.
std::vector<CudaDriver::Range> CudaDriver::accessible_ranges() const {
  std::vector<Range> ranges;
  for (const auto& [address, mapping] : mappings_) {
    if (!mapping.accessible) continue;
    if (!ranges.empty() && ranges.back().address + ranges.back().size == address) {
      ranges.back().size += mapping.size;
    } else {
      ranges.push_back({address, mapping.size});
    }
  }
  return ranges;
}

Status CudaDriver::enable_peer(int ordinal) {
  if (!has_virtual_memory_) return refuse_virtual_memory();
  const std::string gpu = "GPU " + std::to_string(ordinal);
  const std::lock_guard lock(mappings_mutex_);
  cuda::Device peer = 0;
  int reaches = 0;
  Status status = call([&] { return api_.device_get(&peer, ordinal); },
                       [&] { return "access for " + gpu + ": cuDeviceGet"; });
  if (status != Status::success) return status;
  if (std::ranges::find(accessors_, peer) != accessors_.end()) return Status::success;
  status = call([&] { return api_.device_can_access_peer(&reaches, peer, device_); },
                [&] { return "access for " + gpu + ": cuDeviceCanAccessPeer"; });
  if (status != Status::success) return status;
  if (reaches == 0) {
    return refuse(Status::not_permitted,
                  gpu + " cannot reach the memory of GPU " + std::to_string(device_) +
                      ": no NVLink or PCIe path between them allows it; copy through the host");
  }

  const std::vector<Range> ranges = accessible_ranges();
  status = call(
      [&] {
        Result result = kSuccess;
        auto tried = ranges.begin();
        while (result == kSuccess && tried != ranges.end()) {
          result = set_access(*tried++, {peer}, cuda::Access::read_write);
        }
        if (result == kSuccess) return result;
        for (auto it = ranges.begin(); it != tried; ++it) {
          set_access(*it, {peer}, cuda::Access::none);
        }
        return result;
      },
      [&] { return "access for " + gpu + ": cuMemSetAccess"; });
  if (status == Status::success) accessors_.push_back(peer);
  return status;
}

// --- events and streams ------------------------------------------------------------------------

bool CudaDriver::is_lent(Event event) {
  const std::lock_guard lock(events_mutex_);
  return lent_events_.contains(event);
}

Status CudaDriver::record(StreamId stream, Event& event) {
  cuda::Event taken = nullptr;
  {
    const std::lock_guard lock(events_mutex_);
    if (!idle_events_.empty()) {
      taken = idle_events_.back();
      idle_events_.pop_back();
    }
  }
  const char* failing = "cuEventRecord";
  const Status status = call(
      [&] {
        Result result = refuse_capture(stream);
        if (result != kSuccess) return result;
        if (taken == nullptr) {
          cuda::Event made = nullptr;
          result = api_.event_create(&made, cuda::kEventDisableTiming);
          if (result != kSuccess) {
            failing = "cuEventCreate";
            return result;
          }
          taken = made;
        }
        return api_.event_record(taken, stream_of(stream));
      },
      [&] { return failing; });
  const std::lock_guard lock(events_mutex_);
  if (status == Status::success) {
    event = reinterpret_cast<Event>(taken);
    lent_events_.insert(event);
  } else if (taken != nullptr) {
    idle_events_.push_back(taken);
  }
  return status;
}

Status CudaDriver::query(Event event) {
  if (!is_lent(event)) return refuse_event();
  return finish([&] { return api_.event_query(event_of(event)); }, [] { return "cuEventQuery"; });
}

Status CudaDriver::synchronize(Event event) {
  if (!is_lent(event)) return refuse_event();
  return finish([&] { return api_.event_synchronize(event_of(event)); },
                [] { return "cuEventSynchronize"; });
}

Status CudaDriver::destroy(Event event) {
  const std::lock_guard lock(events_mutex_);
  if (lent_events_.erase(event) == 0) return refuse_event();
  idle_events_.push_back(event_of(event));
  return Status::success;
}

Status CudaDriver::wait(StreamId stream, Event event) {
  if (!is_lent(event)) return refuse_event();
  return call([&] { return api_.stream_wait_event(stream_of(stream), event_of(event), 0); },
              [] { return "cuStreamWaitEvent"; });
}

// Refuses operations on a stream under capture: a wait would break the capture, and an event would
// become part of the graph instead of marking the stream's progress.
Result CudaDriver::refuse_capture(StreamId stream) const {
  int capturing = cuda::kNotCapturing;
  const Result result = api_.stream_is_capturing(stream_of(stream), &capturing);
  if (result != kSuccess) return result;
  return capturing == cuda::kNotCapturing ? kSuccess : cuda::kCaptureUnsupported;
}

Status CudaDriver::synchronize_stream(StreamId stream) {
  return finish(
      [&] {
        const Result result = refuse_capture(stream);
        return result == kSuccess ? api_.stream_synchronize(stream_of(stream)) : result;
      },
      [] { return "cuStreamSynchronize"; });
}

Status CudaDriver::synchronize() {
  return finish([&] { return api_.context_synchronize(); }, [] { return "cuCtxSynchronize"; });
}

Status CudaDriver::copy(Address to, Address from, Bytes size, StreamId stream) {
  return call(
      [&] { return api_.memcpy_async(to, from, size, stream_of(stream)); },
      [&] { return "cuMemcpyAsync of " + range_text(size, from) + " to " + format_address(to); });
}

// --- information -------------------------------------------------------------------------------

MemoryInfo CudaDriver::memory_info() const {
  std::size_t free = 0;
  std::size_t total = 0;
  const Result result = Scope(*this).run([&] { return api_.mem_get_info(&free, &total); });
  return result == kSuccess ? MemoryInfo{free, total} : MemoryInfo{};
}

std::int64_t CudaDriver::now_us() const {
  using std::chrono::microseconds;
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<microseconds>(since_epoch).count();
}

std::string CudaDriver::last_error() const {
  const LastError& last = last_error_of_thread;
  return {last.text.data(), last.length};
}

}  // namespace plimsoll
