// The driver of a real GPU: NVIDIA's driver API, on the device's primary context, which is the one
// that PyTorch uses.
//
// Threads may call at the same time, with any context current or none: each call works in the
// primary context and leaves the caller's as it was. It also lifts, for its own duration, the ban
// on allocating, freeing and querying that CUDA puts on every thread while one of them captures a
// graph; what would break the capture itself is refused as `not_permitted`.
//
// Memory of Tier::shared is pinned host memory beside the GPU's NUMA node where the driver can
// place it there. Half of the host's memory may be shared, or of what a container may use. Streams
// are `cudaStream_t` values; 0 is the legacy default stream. Once the process's CUDA is gone, what
// gives back or waits is done without a word.
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
  // Throws cuda::Unavailable: no NVIDIA driver, a driver that does not start, or no such device.
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
  // For this device and every enabled peer; the range is mapped without holes.
  Status set_access(Address address, Bytes size) override;
  Status unmap(Address address, Bytes size) override;
  [[nodiscard]] bool has_virtual_memory() const override { return has_virtual_memory_; }
  // Host memory can be exported only where the driver can place it on a NUMA node.
  Status export_handle(Handle handle, int& descriptor) override;
  Status import_handle(int descriptor, Handle& handle) override;
  Status record(StreamId stream, Event& event) override;
  Status query(Event event) override;
  Status synchronize(Event event) override;
  Status destroy(Event event) override;
  Status wait(StreamId stream, Event event) override;
  Status synchronize_stream(StreamId stream) override;
  // Breaks a capture on any stream of the device, if there is one: CUDA does not tell beforehand.
  Status synchronize() override;
  // On a stream that is being captured the copy becomes part of the graph.
  Status copy(Address to, Address from, Bytes size, StreamId stream) override;
  // {0, 0} if the driver does not tell.
  [[nodiscard]] MemoryInfo memory_info() const override;
  [[nodiscard]] MemoryInfo shared_info() const override;
  // Since 1970, as in PyTorch's traces.
  [[nodiscard]] std::int64_t now_us() const override;
  // What any CudaDriver last failed at in this thread.
  [[nodiscard]] std::string last_error() const override;

  // Lets another device reach the memory that this driver has mapped and will map. What `allocate`
  // returns follows cuCtxEnablePeerAccess instead.
  Status enable_peer(int device) override;

 private:
  class Scope;
  class Locked;  // host memory, counted as long as it exists
  struct Mapping {
    Bytes size = 0;
    bool accessible = false;
    std::shared_ptr<Locked> locked;  // null if dedicated, or another process's
  };
  using Mappings = std::map<Address, Mapping>;
  using LockedMemory = std::map<std::uint64_t, std::shared_ptr<Locked>>;  // by handle or address
  struct Range {
    Address address = 0;
    Bytes size = 0;
  };

  void find_properties();
  [[nodiscard]] int attribute(cuda::Attribute attribute) const;
  [[nodiscard]] bool fits_granule(const cuda::AllocationProperties& properties) const;

  // Runs `body` in the primary context; if it fails, `what` names it in `last_error`.
  template <typename Body, typename What>
  Status call(Body body, What what) const;
  // The same for what is done as soon as the driver is gone.
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
  std::vector<cuda::AllocationProperties> shared_;  // the places for host memory, best first

  std::atomic<Bytes> locked_bytes_ = 0;
  std::mutex mappings_mutex_;    // of the next four
  LockedMemory locked_handles_;  // not released
  LockedMemory host_allocations_;
  Mappings mappings_;
  std::vector<cuda::Device> accessors_;  // this device, then its peers

  std::mutex events_mutex_;               // of the next two
  std::vector<cuda::Event> idle_events_;  // to be used again: creating one costs more
  std::unordered_set<Event> lent_events_;
};

}  // namespace plimsoll
