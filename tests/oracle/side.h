// One of the two allocators that a program runs on: plimsoll's `native`, or the one in PyTorch's
// library. Each has a simulated GPU of its own; both tell of their state in plimsoll's terms.
#pragma once

#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "plimsoll/allocator/allocator.h"
#include "plimsoll/simulated/driver.h"
#include "plimsoll/torch_versions.h"

// A request ran out of memory; the text is the program's error message.
struct OutOfMemoryError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// Anything else went wrong. The two sides word it differently.
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
  // Since the program began. Their times and contexts are 0.
  virtual std::vector<plimsoll::TraceEvent> history() = 0;
  virtual plimsoll::SimulatedDriver& gpu() = 0;
};

// The rules that `native` follows for the PyTorch that this program was built with.
[[nodiscard]] plimsoll::TorchVersion rules();
// PyTorch's abilities.
[[nodiscard]] bool pytorch_has_no_split();
[[nodiscard]] bool pytorch_can_unset_use_on_oom();
[[nodiscard]] bool pytorch_has_malloc_at();

// The default stream and others, in the order in which both sides look at their events. PyTorch's
// order is that of a hash table, so these streams are chosen.
inline constexpr std::size_t kStreams = 4;
[[nodiscard]] const std::array<plimsoll::StreamId, kStreams>& streams_in_order();

// Both throw OtherError for settings that they refuse. `observer` is told of each event.
[[nodiscard]] std::unique_ptr<Side> make_native(plimsoll::Bytes memory, const std::string& settings,
                                                plimsoll::Observer& observer);
// At most one in a process.
[[nodiscard]] std::unique_ptr<Side> make_pytorch(plimsoll::Bytes memory,
                                                 const std::string& settings);
