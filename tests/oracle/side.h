// One of the two allocators that are compared: plimsoll's `native`, or the one in PyTorch's
// library. Each has its own simulated GPU, and reports its state in plimsoll's types.
#pragma once

#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "plimsoll/allocator/allocator.h"
#include "plimsoll/simulated/driver.h"
#include "plimsoll/torch_versions.h"

// A request ran out of memory. The text is the message that a program would see.
struct OutOfMemoryError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// A failure other than running out of memory. The two sides report it with different texts.
struct OtherError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Side {
 public:
  Side() = default;
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;
  virtual ~Side() = default;

  virtual plimsoll::Address malloc(plimsoll::Bytes size, plimsoll::StreamId stream) = 0;
  virtual plimsoll::Address malloc_at(plimsoll::Address address, plimsoll::Bytes size,
                                      plimsoll::StreamId stream, plimsoll::PoolId pool) = 0;
  virtual void free(plimsoll::Address address) = 0;
  virtual void record_stream(plimsoll::Address address, plimsoll::StreamId stream) = 0;
  virtual void empty_cache(plimsoll::PoolId pool) = 0;

  virtual void use_pool(plimsoll::PoolId pool) = 0;
  virtual void begin_allocate_to_pool(plimsoll::PoolId pool,
                                      plimsoll::Allocator::Filter filter) = 0;
  virtual void end_allocate_to_pool(plimsoll::PoolId pool) = 0;
  virtual void set_capturing(bool capturing) = 0;
  virtual void release_pool(plimsoll::PoolId pool) = 0;
  virtual void set_pool_option(plimsoll::PoolId pool, plimsoll::PoolOption option, bool on) = 0;

  virtual void set_fraction(double fraction) = 0;
  virtual void make_settings(const std::string& settings) = 0;
  virtual void reset_peak_statistics() = 0;
  virtual void reset_accumulated_statistics() = 0;

  virtual const plimsoll::Statistics& statistics() = 0;
  virtual std::vector<plimsoll::SegmentInfo> segments() = 0;
  // Returns all events since the program began, each with its `time_us` and `context` set to 0.
  virtual std::vector<plimsoll::TraceEvent> history() = 0;
  virtual plimsoll::SimulatedDriver& gpu() = 0;
};

// Returns the rules that `native` follows for the PyTorch version of this build.
[[nodiscard]] plimsoll::TorchVersion rules();
// Each function returns whether the PyTorch of this build can do one thing: set the pool option
// no_split, switch the pool option use_on_oom off again, or allocate at a given address.
[[nodiscard]] bool pytorch_has_no_split();
[[nodiscard]] bool pytorch_can_unset_use_on_oom();
[[nodiscard]] bool pytorch_has_malloc_at();

// The default stream and three other streams, in ascending order. `native` visits streams in
// ascending order, and PyTorch visits them in the order of a hash table. The streams' numbers are
// chosen such that the two orders agree.
inline constexpr std::size_t kStreams = 4;
[[nodiscard]] const std::array<plimsoll::StreamId, kStreams>& streams_in_order();

// Makes the side that runs `native`. `native` reports its events to `observer`. Throws OtherError
// if `native` refuses the settings.
[[nodiscard]] std::unique_ptr<Side> make_native(plimsoll::Bytes memory, const std::string& settings,
                                                plimsoll::Observer& observer);
// Makes the side of PyTorch, once per process. Throws OtherError if PyTorch refuses the settings.
[[nodiscard]] std::unique_ptr<Side> make_pytorch(plimsoll::Bytes memory,
                                                 const std::string& settings);
