// The driver of a real GPU. It calls NVIDIA's driver API on the device's primary context, which
// PyTorch uses as well.
//
// Several threads may call the driver at the same time. It does not matter which context is
// current in a thread: each call runs in the primary context and leaves the thread's context as it
// was. While a thread captures a graph, CUDA forbids every thread to allocate, to free and to query
// events; each call lifts that ban while it runs. Some calls would break the capture even without
// the ban. Such a call does nothing and returns `not_permitted`. The only exception is
// `synchronize()`: it waits for the whole device, and breaks the capture.
//
// Memory of Tier::shared is pinned host memory. It lies on the NUMA node closest to the GPU if the
// driver can place it there. At most half of the host's memory, or of the container's limit, may be
// shared. Streams are `cudaStream_t` values; 0 is the legacy default stream. After CUDA has shut
// down in this process, the functions that free memory and the functions that wait do nothing and
// return success.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "plimsoll/driver/cuda_api.h"
#include "plimsoll/driver/driver.h"

namespace plimsoll {

class CudaDriver final : public Driver {
 public:
  // Throws cuda::Unavailable if there is no NVIDIA driver, if the driver does not start, or if
  // there is no such device.
  explicit CudaDriver(int device, const std::string& library = "libcuda.so.1")
      : CudaDriver(device, cuda::Api::load(library)) {}
  CudaDriver(int device, const cuda::Api& api);
  ~CudaDriver() override;

  [[nodiscard]] std::string_view name() const override { return "cuda"; }
  Status allocate(Bytes size, Address& address) override;
  Status deallocate(Address address) override;
  Status allocate_host(Bytes size, Address& address) override;
  Status deallocate_host(Address address) override;
  Status reserve(Bytes size, Address& address) override;
  Status unreserve(Address address, Bytes size) override;
  Status create(Bytes size, Tier tier, Handle& handle) override;
  Status release(Handle handle) override;
  Status map(Address address, Bytes size, Handle handle) override;
  // Lets this device, and every peer that `enable_peer` has enabled, access the range. The range
  // must be mapped without holes.
  Status set_access(Address address, Bytes size) override;
  Status unmap(Address address, Bytes size) override;
  [[nodiscard]] bool has_virtual_memory() const override { return has_virtual_memory_; }
  // Exports a handle. Host memory can be exported only if the driver can place it on a NUMA node.
  Status export_handle(Handle handle, int& descriptor) override;
  Status import_handle(int descriptor, Handle& handle) override;
  Status record(StreamId stream, Event& event) override;
  Status query(Event event) override;
  Status synchronize(Event event) override;
  Status destroy(Event event) override;
  Status wait(StreamId stream, Event event) override;
  Status synchronize_stream(StreamId stream) override;
  // Waits for the device. Breaks a capture on any stream of the device, because CUDA offers no way
  // to check for a capture beforehand.
  Status synchronize() override;
  // Queues a copy. On a stream that is being captured the copy becomes part of the graph.
  Status copy(Address to, Address from, Bytes size, StreamId stream) override;
  // Returns the card's memory; {0, 0} if the driver does not report it.
  [[nodiscard]] MemoryInfo memory_info() const override;
  [[nodiscard]] MemoryInfo shared_info() const override;
  // Returns the microseconds since 1970, as in PyTorch's traces.
  [[nodiscard]] std::int64_t now_us() const override;
  // Returns the message of the last failure of any CudaDriver in this thread.
  [[nodiscard]] std::string last_error() const override;

  // Gives another device access to all memory that this driver has mapped or will map. Memory from
  // `allocate` is not included: access to it needs cuCtxEnablePeerAccess.
  Status enable_peer(int device) override;

 private:
  class Scope;
  class Locked;  // page-locked host memory; adds its size to `locked_bytes_` while it exists
  struct Mapping {
    Bytes size = 0;
    bool accessible = false;
    std::shared_ptr<Locked> locked;  // null for dedicated memory and for another process's memory
  };
  using Mappings = std::map<Address, Mapping>;
  using LockedMemory = std::map<std::uint64_t, std::shared_ptr<Locked>>;  // key: handle or address
  struct Range {
    Address address = 0;
    Bytes size = 0;
  };

  void find_properties();
  [[nodiscard]] int attribute(cuda::Attribute attribute) const;
  [[nodiscard]] bool fits_granule(const cuda::AllocationProperties& properties) const;

  // Runs `body` in the primary context. If `body` fails, `last_error` begins with the text that
  // `what` returns.
  template <typename Body, typename What>
  Status call(Body body, What what) const;
  // Runs `body` like `call`, but returns success instead of `driver_gone`, because nothing is left
  // to free or to wait for after the driver is gone.
  template <typename Body, typename What>
  Status finish(Body body, What what) const;
  template <typename What>
  Status report(cuda::Result result, What what) const;
  [[nodiscard]] std::string free_memory() const;

  template <typename Release>
  Status forget_locked(LockedMemory& memory, std::uint64_t key, Release release);
  cuda::Result set_access(Range range, const std::vector<cuda::Device>& devices,
                          cuda::Access access) const;
  cuda::Result unmap_each(Mappings::const_iterator begin, Mappings::const_iterator end) const;
  [[nodiscard]] std::vector<Range> accessible_ranges() const;
  [[nodiscard]] bool is_lent(Event event);
  [[nodiscard]] cuda::Result refuse_capture(StreamId stream) const;

  cuda::Api api_;
  cuda::Device device_ = 0;
  cuda::Context context_ = nullptr;
  bool has_virtual_memory_ = false;
  cuda::AllocationProperties dedicated_;
  std::vector<cuda::AllocationProperties> shared_;  // where host memory may lie, best place first

  std::atomic<Bytes> locked_bytes_ = 0;
  std::mutex mappings_mutex_;    // protects the next four members
  LockedMemory locked_handles_;  // host memory's handles, until they are released
  LockedMemory host_allocations_;
  Mappings mappings_;
  std::vector<cuda::Device> accessors_;  // this device, followed by its peers

  std::mutex events_mutex_;               // protects the next two members
  std::vector<cuda::Event> idle_events_;  // kept, because reuse is cheaper than creation
  std::unordered_set<Event> lent_events_;
};

}  // namespace plimsoll
