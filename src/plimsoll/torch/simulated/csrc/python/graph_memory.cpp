// Functions by which Python handles storages that lie in the memory of CUDA graphs.
#include <c10/core/StorageImpl.h>

#include <string>

#include "device/memory.h"
#include "python/export.h"

namespace plimsoll::simulated {
// Makes an empty storage point into a CUDA graph's memory; the storage does not own the memory.
PLIMSOLL_EXPORT void plimsoll_lend(c10::StorageImpl* storage, uint64_t address, size_t bytes,
                                   int device) {
  storage->set_data_ptr_noswap(lent_memory(address, bytes, static_cast<c10::DeviceIndex>(device)));
  storage->set_nbytes(bytes);
}

PLIMSOLL_EXPORT uint64_t plimsoll_address(c10::StorageImpl* storage) {
  const Allocation* const allocation = held_by(*storage);
  return allocation == nullptr ? 0 : allocation->address;
}

PLIMSOLL_EXPORT int plimsoll_owns(c10::StorageImpl* storage) {
  const Allocation* const allocation = held_by(*storage);
  return allocation != nullptr && !allocation->is_lent ? 1 : 0;
}

PLIMSOLL_EXPORT void plimsoll_own(c10::StorageImpl* storage) {
  Allocation* const allocation = held_by(*storage);
  if (allocation != nullptr && allocation->is_lent) own(*allocation);
}

// Notes that other code has freed the storage's block: the storage will not free it again.
PLIMSOLL_EXPORT void plimsoll_disown(c10::StorageImpl* storage) {
  Allocation* const allocation = held_by(*storage);
  if (allocation != nullptr && !allocation->is_lent) disown(*allocation);
}

PLIMSOLL_EXPORT void plimsoll_let_go(c10::StorageImpl* storage) {
  Allocation* const allocation = held_by(*storage);
  if (allocation != nullptr && !allocation->is_lent) let_go(*allocation);
}

PLIMSOLL_EXPORT void plimsoll_refuse_storage(c10::StorageImpl* storage, const char* why) {
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(std::string(why));
}

}  // namespace plimsoll::simulated
