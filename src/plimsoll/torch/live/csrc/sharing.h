// Shares tensors with other processes. Memory of one driver allocation travels as CUDA's own
// 64-byte handle, which every PyTorch understands, so PyTorch's allocator opens it. Mapped memory
// travels as file descriptors: the handle names the process that owns them, and the receiver
// fetches and maps them.
//
// A block's descriptors stay open as long as it lives, and its handle stays the same; PyTorch keeps
// it alive until the last receiver is done. A handle that is opened twice gives the same mapping.
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
  // Shares memory inside a live block of the device's engine.
  torch_allocator::ShareableHandle share(Device& device, const void* pointer,
                                         const plimsoll_place& place);
  // Returns whether the handle refers to mapped memory, so that `open` opens it.
  static bool is_ours(std::string_view handle);
  std::shared_ptr<void> open(Device& device, const std::string& handle);

  [[nodiscard]] bool has_exports() const { return count_.load(std::memory_order_relaxed) != 0; }
  // Drops a block's export. Call it before the block is freed.
  void forget(uint64_t block);

 private:
  struct Export {
    std::string handle;
    uint64_t offset = 0;  // of the block in the memory behind the handle
    std::vector<int> descriptors;
  };

  Export make_export(Device& device, uint64_t block);

  std::atomic<size_t> count_ = 0;
  uint64_t serial_ = 0;
  std::mutex mutex_;
  std::unordered_map<uint64_t, Export> exports_;  // by block
  std::unordered_map<std::string, std::weak_ptr<void>> imports_;
};

}  // namespace plimsoll::live
