#include "plimsoll/allocator/allocator.h"

namespace plimsoll {
namespace {

std::string rejection(const OutOfMemoryReport& report) {
  return "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
         "per_process_memory_fraction limit. Requested size: " +
         format_bytes(report.requested);
}

// Returns PyTorch's error message, which tools parse. If `report.shared` is set, a sentence about
// shared memory follows.
std::string describe(const OutOfMemoryReport& report) {
  if (report.is_rejected) return rejection(report);
  const Bytes in_use = report.device_total - report.device_free - report.used_by_others;
  std::string text = "CUDA out of memory. Tried to allocate " + format_bytes(report.tried) +
                     ". GPU " + std::to_string(report.device) + " has a total capacity of " +
                     format_bytes(report.device_total) + " of which " +
                     format_bytes(report.device_free) +
                     " is free. Including non-PyTorch memory, this process has " +
                     format_bytes(in_use) + " memory in use. ";
  if (report.limit) text += format_bytes(*report.limit) + " allowed; ";
  const Bytes held = report.allocated + report.free_in_private_pools;
  text += "Of the allocated memory " + format_bytes(held) + " is allocated by PyTorch, ";
  if (report.free_in_private_pools > 0) {
    text += "with " + format_bytes(report.free_in_private_pools) +
            " allocated in private pools (e.g., CUDA Graphs), ";
  }
  text += "and " + format_bytes(report.reserved > held ? report.reserved - held : 0) +
          " is reserved by PyTorch but unallocated.";
  text += report.advice;
  if (report.shared) {
    text +=
        " Shared memory cannot serve the request either: " + format_bytes(report.shared->reserved) +
        " of it is in use, " + format_bytes(report.shared->allowed) + " is allowed and " +
        format_bytes(report.shared->free) + " is free.";
  }
  return text;
}

}  // namespace

std::string documentation(TorchVersion version) {
  const char* const page = version.names_cuda_settings_again()
                               ? "docs.pytorch.org/docs/stable/notes/"
                                 "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"
                               : "pytorch.org/docs/stable/notes/cuda.html#environment-variables";
  return std::string("  See documentation for Memory Management  (https://") + page + ")";
}

std::string usual_advice(TorchVersion version) {
  const bool is_common = version.names_common_settings() && !version.names_cuda_settings_again();
  return std::string(" If reserved but unallocated memory is large try setting ") +
         (is_common ? "PYTORCH_ALLOC_CONF" : "PYTORCH_CUDA_ALLOC_CONF") +
         "=expandable_segments:True to avoid fragmentation." + documentation(version);
}

UnknownAddress::UnknownAddress(Address address)
    : std::invalid_argument(format_address(address) + " is not allocated") {}

OutOfMemory::OutOfMemory(const OutOfMemoryReport& report) : OutOfMemory(report, describe(report)) {}

OutOfMemory::OutOfMemory(const OutOfMemoryReport& report, const std::string& text)
    : std::runtime_error(text), report_(report) {}

DriverError::DriverError(const char* call, Status status, const std::string& reason)
    : std::runtime_error(std::string("the driver failed to ") + call + ": " +
                         (reason.empty() ? std::string(to_string(status)) : reason)) {}

void Allocator::note_snapshot() {
  note(Action::snapshot, 0, static_cast<Bytes>(statistics().active_bytes.all.current), 0);
}

void Allocator::fail(Bytes requested, Bytes rounded, Bytes tried, StreamId stream, PoolId pool,
                     Bytes free_in_private_pools, const std::optional<SharedMemoryReport>& shared) {
  note(Action::oom, driver_.memory_info().free, rounded, stream, pool);
  ++statistics_.num_ooms;
  throw OutOfMemory(report_failure(requested, tried, free_in_private_pools, shared));
}

OutOfMemoryReport Allocator::report_failure(Bytes requested, Bytes tried,
                                            Bytes free_in_private_pools,
                                            const std::optional<SharedMemoryReport>& shared) const {
  const MemoryInfo memory = driver_.memory_info();
  return {device_,
          requested,
          tried,
          memory.total,
          memory.free,
          memory.used_by_others,
          limit_,
          static_cast<Bytes>(statistics_.allocated_bytes.all.current),
          static_cast<Bytes>(statistics_.reserved_bytes.all.current),
          free_in_private_pools,
          shared,
          advice_against_failure(tried)};
}

}  // namespace plimsoll
