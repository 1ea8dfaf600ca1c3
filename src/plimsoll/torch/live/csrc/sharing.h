// Shares tensors with other processes. If the memory is one driver allocation, its handle is CUDA's
// own 64-byte handle, which any PyTorch can open. If the memory was mapped in pieces, each piece
// has a file descriptor. The handle then contains the ID of the owning process and the numbers of
// the descriptors. The receiver fetches the descriptors from that process and maps their memory.
//
// A block's descriptors stay open as long as the block lives, and the block's handle does not
// change. PyTorch keeps the block alive until the last receiver is done. If a receiver opens a
// handle again while it still uses the mapping, it gets the same mapping.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "device.h"
#include "versions.h"

namespace plimsoll::live {

class Sharing {
 public:
  // Returns a handle for memory inside a live block of the device's engine.
  torch_allocator::ShareableHandle share(Device& device, const void* pointer,
                                         const plimsoll_place& place);
  // Returns whether a handle refers to memory that is mapped in pieces. `open` opens only such
  // handles.
  static bool is_ours(std::string_view handle);
  std::shared_ptr<void> open(Device& device, const std::string& handle);

  [[nodiscard]] bool has_exports() const { return count_.load(std::memory_order_relaxed) != 0; }
  // Closes a block's descriptors. Call it before the block is freed.
  void forget(uint64_t block);

 private:
  struct Export {
    std::string handle;
    uint64_t offset = 0;  // from the start of the handle's memory to the block
    std::vector<int> descriptors;
  };

  Export make_export(Device& device, uint64_t block);

  std::atomic<size_t> count_ = 0;
  uint64_t serial_ = 0;
  std::mutex mutex_;
  std::unordered_map<uint64_t, Export> exports_;  // by the block's address
  std::unordered_map<std::string, std::weak_ptr<void>> imports_;
};

}  // namespace plimsoll::live
