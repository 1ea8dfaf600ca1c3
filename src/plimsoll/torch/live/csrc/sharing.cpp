#include "sharing.h"

#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace plimsoll::live {

namespace {

// plimsoll's handles begin with these bytes. PyTorch's own handles begin with a small number, and
// CUDA's are random.
constexpr std::string_view kMagic = "plimsoll";

struct Header {
  char magic[8];
  int64_t process;
  uint64_t serial;  // makes the handle unique, because numbers of closed descriptors are reused
  uint64_t count;
};
struct Piece {
  uint64_t size;
  int64_t descriptor;  // the file descriptor's number in the exporting process
};

template <typename T>
T read(const std::string& text, size_t offset) {
  TORCH_CHECK(offset + sizeof(T) <= text.size(), "a shared memory handle is cut short");
  T value;
  std::memcpy(&value, text.data() + offset, sizeof(T));
  return value;
}

template <typename T>
void append(std::string& text, const T& value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

// Owns file descriptors; the destructor closes them.
class Descriptors {
 public:
  Descriptors() = default;
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;
  ~Descriptors() {
    for (const int descriptor : values_) ::close(descriptor);
  }
  void add(int descriptor) { values_.push_back(descriptor); }
  [[nodiscard]] const int* data() const { return values_.data(); }
  [[nodiscard]] size_t size() const { return values_.size(); }

 private:
  std::vector<int> values_;
};

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

int checked(long result, const char* call, int64_t process) {
  TORCH_CHECK(result >= 0, "memory shared by process ", process, " cannot be opened: ", call, ": ",
              std::strerror(errno),
              ". This kernel or container does not let processes fetch each other's descriptors; "
              "PLIMSOLL_ALLOCATOR=native shares memory without");
  return static_cast<int>(result);
}

}  // namespace

torch_allocator::ShareableHandle Sharing::share(Device& device, const void* pointer,
                                                const plimsoll_place& place) {
  if (place.is_virtual == 0) {
    cudaIpcMemHandle_t handle;
    const c10::DeviceGuard guard(c10::Device(c10::DeviceType::CUDA, device.index()));
    C10_CUDA_CHECK(cudaIpcGetMemHandle(&handle, as_pointer(place.segment)));
    return {static_cast<ptrdiff_t>(as_number(pointer) - place.segment),
            std::string(reinterpret_cast<const char*>(&handle), sizeof(handle))};
  }
  const std::scoped_lock lock(mutex_);
  auto found = exports_.find(place.block);
  if (found == exports_.end()) {
    found = exports_.emplace(place.block, make_export(device, place.block)).first;
    count_ = exports_.size();
  }
  const uint64_t offset = found->second.offset + (as_number(pointer) - place.block);
  return {static_cast<ptrdiff_t>(offset), found->second.handle};
}

Sharing::Export Sharing::make_export(Device& device, uint64_t block) {
  Export result;
  size_t count = 0;
  plimsoll_engine* engine = device.engine();
  check(api->export_memory(engine, block, &result.offset, nullptr, nullptr, 0, &count));
  std::vector<uint64_t> sizes(count);
  result.descriptors.resize(count);
  check(api->export_memory(engine, block, &result.offset, result.descriptors.data(), sizes.data(),
                           count, &count));
  Header header{};
  kMagic.copy(header.magic, sizeof(header.magic));
  header.process = ::getpid();
  header.serial = ++serial_;
  header.count = count;
  append(result.handle, header);
  for (size_t i = 0; i < count; ++i) {
    append(result.handle, Piece{sizes[i], result.descriptors[i]});
  }
  return result;
}

void Sharing::forget(uint64_t block) {
  Export gone;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = exports_.find(block);
    if (found == exports_.end()) return;
    gone = std::move(found->second);
    exports_.erase(found);
    count_ = exports_.size();
  }
  for (const int descriptor : gone.descriptors) ::close(descriptor);
}

bool Sharing::is_ours(std::string_view handle) { return handle.starts_with(kMagic); }

std::shared_ptr<void> Sharing::open(Device& device, const std::string& handle) {
  plimsoll_engine* engine = device.engine();
  const std::scoped_lock lock(mutex_);
  if (const auto known = imports_.find(handle); known != imports_.end()) {
    if (auto memory = known->second.lock()) return memory;
  }

  const auto header = read<Header>(handle, 0);
  Descriptors process, pieces;
  process.add(checked(syscall(SYS_pidfd_open, header.process, 0), "pidfd_open", header.process));
  std::vector<uint64_t> sizes;
  for (uint64_t i = 0; i < header.count; ++i) {
    const auto piece = read<Piece>(handle, sizeof(Header) + i * sizeof(Piece));
    sizes.push_back(piece.size);
    pieces.add(checked(syscall(SYS_pidfd_getfd, process.data()[0], piece.descriptor, 0),
                       "pidfd_getfd", header.process));
  }
  uint64_t address = 0;
  check(api->import_memory(engine, pieces.data(), sizes.data(), pieces.size(), &address));
  std::shared_ptr<void> memory(as_pointer(address), [this, engine, handle](void* pointer) {
    {
      const std::scoped_lock deleter_lock(mutex_);
      const auto entry = imports_.find(handle);
      if (entry != imports_.end() && entry->second.expired()) imports_.erase(entry);
    }
    check(api->close_memory(engine, as_number(pointer)));
  });
  imports_[handle] = memory;
  return memory;
}

}  // namespace plimsoll::live
