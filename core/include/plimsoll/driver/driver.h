// The driver seam: what a GPU driver offers to an allocator on one device.
//
// Calls mirror CUDA's: whole allocations (cudaMalloc, cudaFree), page-locked host memory
// (cudaHostAlloc), virtual memory management (cuMemAddressReserve, cuMemCreate, cuMemMap,
// cuMemSetAccess, cuMemUnmap, cuMemRelease), copies, and the events that say how far a stream has
// come. No call throws; each reports a Status, and a call
// that fails has changed nothing. A driver knows nothing of blocks, pools or policy.
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
  driver_gone,    // the process is ending, or the device was reset: its memory is gone already
  failed,         // anything else: `last_error` says what
};

[[nodiscard]] std::string_view to_string(Status status);

// Windows' words: dedicated memory is the card's own, shared memory is host memory that the GPU
// can address.
enum class Tier : std::uint8_t { dedicated, shared };

using Handle = std::uint64_t;  // physical memory that `create` made
using Event = std::uint64_t;   // a point in a stream's work

struct MemoryInfo {
  Bytes free = 0;
  Bytes total = 0;
  Bytes used_by_others = 0;  // by other processes, where the driver knows that
};

class Driver {
 public:
  Driver() = default;
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;
  virtual ~Driver() = default;

  // "cuda", "simulated".
  [[nodiscard]] virtual std::string_view name() const = 0;

  // Physical memory with an address of its own. The address is aligned to 512 bytes, and to the
  // granule when `size` is at least one granule.
  virtual Status allocate(Bytes size, Address& address) = 0;
  // Waits, like cudaFree, until the device has finished the work queued so far.
  virtual Status deallocate(Address address) = 0;

  // Page-locked host memory that every GPU and the CPU reach at the same address. It counts as
  // shared memory.
  virtual Status allocate_host(Bytes size, Address& address) = 0;
  // The caller knows that no queued work uses the memory.
  virtual Status deallocate_host(Address address) = 0;

  // Address space without memory; `size` is a multiple of the granule.
  virtual Status reserve(Bytes size, Address& address) = 0;
  virtual Status unreserve(Address address, Bytes size) = 0;
  // Memory without an address; `size` is a multiple of the granule.
  virtual Status create(Bytes size, Tier tier, Handle& handle) = 0;
  // The memory returns to the device when its last mapping is gone as well.
  virtual Status release(Handle handle) = 0;
  // Maps the whole handle. A handle may be mapped at several addresses at a time.
  virtual Status map(Address address, Bytes size, Handle handle) = 0;
  virtual Status set_access(Address address, Bytes size) = 0;
  // Removes every mapping that lies wholly in the range; cutting one in two is invalid. Waits for
  // nothing: the caller knows that no queued work uses the range.
  virtual Status unmap(Address address, Bytes size) = 0;
  // Whether dedicated memory that is asked for may turn out to be shared, as under Windows.
  [[nodiscard]] virtual bool spills() const { return false; }
  // How much of a range turned out so.
  [[nodiscard]] virtual Bytes shared_in(Address, Bytes) { return 0; }
  // Whether reserve, create and map are supported at all.
  [[nodiscard]] virtual bool has_virtual_memory() const { return true; }

  // A file descriptor, the caller's to close, through which another process may `import_handle`.
  virtual Status export_handle(Handle, int&) { return Status::not_supported; }
  virtual Status import_handle(int, Handle&) { return Status::not_supported; }
  // Lets another GPU of this process use all of this one's memory.
  virtual Status enable_peer(int) { return Status::not_supported; }

  // An event is complete when the work queued on its stream before it is complete. On a stream that
  // is being captured there is no such point: not_permitted.
  virtual Status record(StreamId stream, Event& event) = 0;
  virtual Status query(Event event) = 0;  // success or not_ready
  // The streams of which an event may be complete, in order, where the driver knows: an event of
  // any other stream is not ready. Null where each has to be asked.
  [[nodiscard]] virtual const std::set<StreamId>* streams_to_query() const { return nullptr; }
  virtual Status synchronize(Event event) = 0;
  virtual Status destroy(Event event) = 0;
  // What is queued on `stream` from now on waits, on the device, for the event.
  virtual Status wait(StreamId stream, Event event) = 0;
  virtual Status synchronize_stream(StreamId stream) = 0;
  // Waits until the device has finished everything queued so far, on every stream.
  virtual Status synchronize() = 0;

  // Queues a copy between any two of allocated, mapped and page-locked memory. Until it is complete
  // both ranges must stay as they are.
  virtual Status copy(Address to, Address from, Bytes size, StreamId stream) = 0;

  // Of dedicated memory.
  [[nodiscard]] virtual MemoryInfo memory_info() const = 0;
  // Of shared memory: how much of the host's memory may be the GPUs', and how much of that can
  // still be locked.
  [[nodiscard]] virtual MemoryInfo shared_info() const = 0;
  // Microseconds on the driver's clock; the zero point is the driver's own.
  [[nodiscard]] virtual std::int64_t now_us() const = 0;

  // What the call of this thread that failed last has to say, besides its status; may be empty.
  [[nodiscard]] virtual std::string last_error() const { return {}; }
};

}  // namespace plimsoll
