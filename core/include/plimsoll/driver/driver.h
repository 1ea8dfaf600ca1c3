// The interface of a GPU's driver: the operations that it offers to an allocator on one device.
//
// The functions mirror CUDA's: whole allocations (cudaMalloc, cudaFree), page-locked host memory
// (cudaHostAlloc), virtual memory management (cuMemAddressReserve, cuMemCreate, cuMemMap,
// cuMemSetAccess, cuMemUnmap, cuMemRelease), copies, and events that show a stream's progress. No
// call throws; each returns a Status, and a call that fails has changed nothing. A driver knows
// nothing about blocks, pools or policy.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "plimsoll/base/units.h"

namespace plimsoll {

enum class Status : std::uint8_t {
  success,
  out_of_memory,
  invalid_value,
  not_ready,
  not_supported,
  not_permitted,  // a stream is being captured, or two GPUs cannot reach each other
  device_lost,    // no call on this device will succeed again in this process
  driver_gone,    // all memory is gone: the process is ending, or the device was reset
  failed,         // any other failure; `last_error` explains it
};

[[nodiscard]] std::string_view to_string(Status status);

// Memory tiers in Windows' terms: dedicated memory is the card's own, shared memory is host memory
// that the GPU can address.
enum class Tier : std::uint8_t { dedicated, shared };

using Handle = std::uint64_t;  // physical memory that `create` made
using Event = std::uint64_t;   // a point in a stream's work

struct MemoryInfo {
  Bytes free = 0;
  Bytes total = 0;
  Bytes used_by_others = 0;  // memory of other processes, if the driver reports it
};

class Driver {
 public:
  Driver() = default;
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;
  virtual ~Driver() = default;

  // Returns the driver's name: "cuda" or "simulated".
  [[nodiscard]] virtual std::string_view name() const = 0;

  // Allocates physical memory together with its address. The address is aligned to 512 bytes, and
  // to the granule if `size` is at least one granule.
  virtual Status allocate(Bytes size, Address& address) = 0;
  // Frees an allocation. Like cudaFree, it first waits until the device has finished the work
  // queued so far.
  virtual Status deallocate(Address address) = 0;

  // Allocates page-locked host memory that every GPU and the CPU reach at the same address. It
  // counts as shared memory.
  virtual Status allocate_host(Bytes size, Address& address) = 0;
  // Frees page-locked memory. The caller must know that no queued work uses it.
  virtual Status deallocate_host(Address address) = 0;

  // Reserves address space without memory; `size` is a multiple of the granule.
  virtual Status reserve(Bytes size, Address& address) = 0;
  virtual Status unreserve(Address address, Bytes size) = 0;
  // Creates physical memory without an address; `size` is a multiple of the granule.
  virtual Status create(Bytes size, Tier tier, Handle& handle) = 0;
  // Releases a handle. The memory returns to the device once its last mapping is gone as well.
  virtual Status release(Handle handle) = 0;
  // Maps the whole handle. A handle may be mapped at several addresses at once.
  virtual Status map(Address address, Bytes size, Handle handle) = 0;
  virtual Status set_access(Address address, Bytes size) = 0;
  // Removes every mapping that lies wholly in the range; a range that cuts a mapping in two is
  // invalid. Does not wait: the caller must know that no queued work uses the range.
  virtual Status unmap(Address address, Bytes size) = 0;
  // Returns whether a request for dedicated memory may get shared memory instead, as under Windows.
  [[nodiscard]] virtual bool spills() const { return false; }
  // Returns how many bytes of a range lie in shared memory because dedicated memory was full.
  [[nodiscard]] virtual Bytes shared_in(Address, Bytes) { return 0; }
  // Returns whether the driver supports reserve, create and map.
  [[nodiscard]] virtual bool has_virtual_memory() const { return true; }

  // Returns a file descriptor through which another process can `import_handle`. The caller closes
  // it.
  virtual Status export_handle(Handle, int&) { return Status::not_supported; }
  virtual Status import_handle(int, Handle&) { return Status::not_supported; }
  // Gives another GPU of this process access to all memory of this GPU.
  virtual Status enable_peer(int) { return Status::not_supported; }

  // Records an event on `stream`. The event is complete once the device has finished all work that
  // was queued on `stream` before the event. Returns not_permitted if `stream` is being captured.
  // The work then goes into a graph and does not run, so the event could never be complete.
  virtual Status record(StreamId stream, Event& event) = 0;
  virtual Status query(Event event) = 0;  // returns success or not_ready
  // Returns the sorted set of streams whose events may be complete; the events of all other streams
  // are not ready. Returns null if the driver has no such set. The caller then queries each event.
  [[nodiscard]] virtual const std::set<StreamId>* streams_to_query() const { return nullptr; }
  virtual Status synchronize(Event event) = 0;
  virtual Status destroy(Event event) = 0;
  // Makes `stream` wait for the event: the device delays all work that is queued on `stream` after
  // this call until the event is complete. The call itself does not wait.
  virtual Status wait(StreamId stream, Event event) = 0;
  virtual Status synchronize_stream(StreamId stream) = 0;
  // Waits until the device has finished everything queued so far, on every stream.
  virtual Status synchronize() = 0;

  // Queues a copy between any two ranges of allocated, mapped or page-locked memory. Neither range
  // may be freed or unmapped before the copy is complete.
  virtual Status copy(Address to, Address from, Bytes size, StreamId stream) = 0;

  // Returns the size and the free part of dedicated memory.
  [[nodiscard]] virtual MemoryInfo memory_info() const = 0;
  // Returns how much host memory the GPUs may lock, and how much of that they can still lock.
  [[nodiscard]] virtual MemoryInfo shared_info() const = 0;
  // Returns microseconds on the driver's clock. Each driver chooses its zero point.
  [[nodiscard]] virtual std::int64_t now_us() const = 0;

  // Returns the driver's message for this thread's last failed call; may be empty.
  [[nodiscard]] virtual std::string last_error() const { return {}; }
};

}  // namespace plimsoll
