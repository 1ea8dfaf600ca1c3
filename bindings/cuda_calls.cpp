// Implements NVIDIA's driver API on the simulated GPUs of this process. The folder libcuda/ has a
// library that replaces NVIDIA's libcuda. That library calls the functions in a table, which this
// file fills.
//
// A program's calls take memory from the same simulated cards as PyTorch's allocator. A copy
// between host and card takes time and moves no values, because simulated memory holds none.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "calls.h"
#include "cuda_calls.h"
#include "module.h"
#include "plimsoll/driver/cuda_errors.h"
#include "plimsoll/engine/engine.h"
#include "plimsoll/simulated/driver.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace plimsoll::python {
namespace {

using namespace cuda;

constexpr int kDriverVersion = 13'000;
constexpr Result kFailed = 999;  // CUDA_ERROR_UNKNOWN
constexpr Result kNoSuchContext = 201;
// A handle has its GPU's number in the bits from this position up. The bits below are the simulated
// driver's own handle.
constexpr int kGpuShift = 48;
// Addresses from here up belong to simulated GPUs; lower ones belong to the process.
constexpr Address kFirstOfGpus = Address{1} << 48;

// These are values of the driver's enumeration CU_DEVICE_ATTRIBUTE_...
constexpr int kThreadsPerBlock = 1, kWarpSize = 10, kMultiprocessors = 16, kMajor = 75, kMinor = 76;
// These device attributes say whether memory can be shared with other processes, whether network
// cards can access it (GPUDirect RDMA), and whether multicast works. Simulated cards support none.
constexpr std::array kAbsentAbilities{103, 104, 105, 110, 116, 128, 132};

bool size_was_read = false;  // whether the program asked this API how much memory a card has
bool has_copied = false;     // whether the program copied between host and card by this API

// One simulated card, and the memory that the program took from it through this API.
struct Card {
  SimulatedDriver* gpu = nullptr;
  Bytes total = 0;
  int multiprocessors = 0;
  int major = 0;
  int minor = 0;
  Bytes taken = 0;
  Bytes most_taken = 0;
  std::uint64_t refusals = 0;  // requests that failed for lack of memory
};

std::vector<Card> cards;
SimulatedRuntime runtime;

Result result_of(Status status) {
  switch (status) {
    case Status::success: return kSuccess;
    case Status::out_of_memory: return kOutOfMemory;
    case Status::invalid_value: return kInvalidValue;
    case Status::not_supported: return kNotSupported;
    default: return kFailed;
  }
}

Card* card(int device) {
  if (device < 0 || static_cast<std::size_t>(device) >= cards.size()) return nullptr;
  return &cards[static_cast<std::size_t>(device)];
}
Card* current_card() { return card(runtime.current_device()); }

// Runs `call` on the GPU's driver, and counts the memory that the call took or gave back.
template <typename Call>
Result counted(Card& on, Call call) {
  const auto exclusive = exclude_simulated_gpus();
  const Bytes before = on.gpu->dedicated_used();
  const Status status = call(*on.gpu);
  on.taken += on.gpu->dedicated_used() - before;
  on.most_taken = std::max(on.most_taken, on.taken);
  if (status == Status::out_of_memory) ++on.refusals;
  return result_of(status);
}

// Runs `call` on the drivers of the GPUs, one after another, until one of them knows the address.
template <typename Call>
Result at_address(Call call) {
  for (Card& each : cards) {
    const Result result = counted(each, call);
    if (result != kInvalidValue) return result;
  }
  return kInvalidValue;
}

Context context_of(int device) {
  return reinterpret_cast<Context>(static_cast<std::uintptr_t>(device) + 1);
}

// --- the process and its GPUs ------------------------------------------------------------------

Result init(unsigned flags) { return flags == 0 ? kSuccess : kInvalidValue; }

Result driver_version(int* version) {
  *version = kDriverVersion;
  return kSuccess;
}

const Error* error_of(Result code) {
  const auto known = errors();
  const auto found = std::find_if(known.begin(), known.end(),
                                  [code](const Error& error) { return error.code == code; });
  return found == known.end() ? nullptr : &*found;
}

Result error_name(Result code, const char** name) {
  const Error* const error = error_of(code);
  *name = code == kSuccess ? "CUDA_SUCCESS" : error == nullptr ? nullptr : error->name.data();
  return *name == nullptr ? kInvalidValue : kSuccess;
}

// Sets `text` to the meaning of a code. Some programs search error messages for NVIDIA's wording.
// The codes that these programs look for keep NVIDIA's text; all other codes have plimsoll's text.
Result error_string(Result code, const char** text) {
  const Error* const error = error_of(code);
  switch (code) {
    case kSuccess: *text = "no error"; break;
    case kInvalidValue: *text = "invalid argument"; break;
    case kOutOfMemory: *text = "out of memory"; break;
    default: *text = error == nullptr ? nullptr : error->meaning.data();
  }
  return *text == nullptr ? kInvalidValue : kSuccess;
}

Result device_count(int* count) {
  *count = static_cast<int>(cards.size());
  return kSuccess;
}

Result device_get(Device* device, int ordinal) {
  if (card(ordinal) == nullptr) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

Result device_total(std::size_t* bytes, Device device) {
  const Card* const found = card(device);
  if (found == nullptr) return kInvalidDevice;
  *bytes = found->total;
  size_was_read = true;
  return kSuccess;
}

Result device_attribute(int* value, int attribute, Device device) {
  const Card* const found = card(device);
  if (found == nullptr) return kInvalidDevice;
  switch (attribute) {
    case kMultiprocessors: *value = found->multiprocessors; return kSuccess;
    case kMajor: *value = found->major; return kSuccess;
    case kMinor: *value = found->minor; return kSuccess;
    case static_cast<int>(Attribute::virtual_memory): *value = 1; return kSuccess;
    case kThreadsPerBlock: *value = 1024; return kSuccess;
    case kWarpSize: *value = 32; return kSuccess;
    default: break;
  }
  if (std::ranges::find(kAbsentAbilities, attribute) == kAbsentAbilities.end())
    return kNotSupported;
  *value = 0;
  return kSuccess;
}

// --- contexts: only the primary one of each GPU ------------------------------------------------

Result retain_context(Context* context, Device device) {
  if (card(device) == nullptr) return kInvalidDevice;
  runtime.use(device);
  *context = context_of(device);
  return kSuccess;
}

Result release_context(Device device) {
  // There is nothing to release: PyTorch keeps the context.
  return card(device) == nullptr ? kInvalidDevice : kSuccess;
}

Result get_context(Context* context) {
  *context = context_of(runtime.current_device());
  return kSuccess;
}

Result set_context(Context context) {
  if (context == nullptr) return kSuccess;
  const auto number = reinterpret_cast<std::uintptr_t>(context) - 1;
  if (number >= cards.size()) return kNoSuchContext;
  runtime.set_device(static_cast<int>(number));
  return kSuccess;
}

Result context_device(Device* device) {
  *device = runtime.current_device();
  return kSuccess;
}

Result synchronize() {
  Card* const current = current_card();
  if (current == nullptr) return kInvalidDevice;
  const auto exclusive = exclude_simulated_gpus();
  current->gpu->synchronize_device();
  return kSuccess;
}

// --- allocations that include an address (cuMemAlloc, cuMemFree) --------------------------------

// Tells the program the free and total memory of the current card. The total is what a real card of
// this kind has, even if the simulated memory is unlimited.
Result memory_info(std::size_t* free, std::size_t* total) {
  Card* const current = current_card();
  if (current == nullptr) return kInvalidDevice;
  runtime.use(runtime.current_device());
  const auto exclusive = exclude_simulated_gpus();
  const MemoryInfo memory = current->gpu->memory_info();
  const Bytes used = memory.total - memory.free;
  *total = current->total;
  *free = used < current->total ? current->total - used : 0;
  size_was_read = true;
  return kSuccess;
}

Result allocate(DevicePointer* address, std::size_t size) {
  Card* const current = current_card();
  if (current == nullptr) return kInvalidDevice;
  runtime.use(runtime.current_device());
  Address found = 0;
  const Result result =
      counted(*current, [&](SimulatedDriver& gpu) { return gpu.allocate(size, found); });
  if (result == kSuccess) *address = found;
  return result;
}

Result deallocate(DevicePointer address) {
  if (address == 0) return kSuccess;
  return at_address([&](SimulatedDriver& gpu) { return gpu.deallocate(address); });
}

// Returns the GPU that has accessible memory at this address; null if there is none.
SimulatedDriver* reached(Address address) {
  for (const Card& each : cards) {
    try {
      static_cast<void>(each.gpu->tag_at(address));
      return each.gpu;
    } catch (const std::logic_error&) {
      continue;  // the address is not this GPU's
    }
  }
  return nullptr;
}

// Makes a copy. The host waits until the GPU's work is done, and then for the copy itself.
Result copy(DevicePointer to, DevicePointer from, std::size_t size) {
  const auto exclusive = exclude_simulated_gpus();
  SimulatedDriver* gpu = nullptr;
  int on_gpus = 0;
  for (const Address address : {Address{to}, Address{from}}) {
    if (address < kFirstOfGpus || size == 0) continue;
    SimulatedDriver* const owner = reached(address);
    if (owner == nullptr || reached(address + size - 1) == nullptr) return kInvalidValue;
    gpu = owner;
    ++on_gpus;
  }
  if (gpu == nullptr) {
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), size);
    return kSuccess;
  }
  gpu->synchronize_device();
  const Tier other = on_gpus == 2 ? Tier::dedicated : Tier::shared;
  has_copied = true;
  gpu->host().advance(gpu->costs().of_copy(size, Tier::dedicated, other));
  return kSuccess;
}

Result copy_to_device(DevicePointer to, const void* from, std::size_t size) {
  return copy(to, reinterpret_cast<std::uintptr_t>(from), size);
}

Result copy_to_host(void* to, DevicePointer from, std::size_t size) {
  return copy(reinterpret_cast<std::uintptr_t>(to), from, size);
}

Result fill(DevicePointer address, unsigned char, std::size_t size) {
  const auto exclusive = exclude_simulated_gpus();
  const bool is_known = size == 0 || (reached(address) && reached(address + size - 1));
  return is_known ? kSuccess : kInvalidValue;
}

// --- virtual memory ----------------------------------------------------------------------------

// Reserves addresses of the current GPU. Only that GPU's memory can be mapped there.
Result reserve(DevicePointer* address, std::size_t size, std::size_t, DevicePointer,
               unsigned long long) {
  Card* const current = current_card();
  if (current == nullptr) return kInvalidDevice;
  if (size == 0 || size % kGranule != 0) return kInvalidValue;
  Address found = 0;
  const Result result =
      counted(*current, [&](SimulatedDriver& gpu) { return gpu.reserve(size, found); });
  if (result == kSuccess) *address = found;
  return result;
}

Result unreserve(DevicePointer address, std::size_t size) {
  return at_address([&](SimulatedDriver& gpu) { return gpu.unreserve(address, size); });
}

Result granularity(std::size_t* bytes, const AllocationProperties*, int) {
  *bytes = kGranule;
  return kSuccess;
}

Result create(MemoryHandle* handle, std::size_t size, const AllocationProperties* properties,
              unsigned long long) {
  const bool is_on_card = properties->location.type == LocationType::device;
  const int device = is_on_card ? properties->location.id : runtime.current_device();
  Card* const found = card(device);
  if (found == nullptr) return kInvalidDevice;
  if (size == 0 || size % kGranule != 0) return kInvalidValue;
  runtime.use(device);
  Handle made = 0;
  const Tier tier = is_on_card ? Tier::dedicated : Tier::shared;
  const Result result =
      counted(*found, [&](SimulatedDriver& gpu) { return gpu.create(size, tier, made); });
  if (result == kSuccess) *handle = made | (static_cast<Handle>(device) << kGpuShift);
  return result;
}

std::pair<Card*, Handle> parts_of(MemoryHandle handle) {
  return {card(static_cast<int>(handle >> kGpuShift)),
          handle & ((MemoryHandle{1} << kGpuShift) - 1)};
}

Result release(MemoryHandle handle) {
  const auto [on, own] = parts_of(handle);
  if (on == nullptr) return kInvalidValue;
  return counted(*on, [own = own](SimulatedDriver& gpu) { return gpu.release(own); });
}

Result map(DevicePointer address, std::size_t size, std::size_t offset, MemoryHandle handle,
           unsigned long long) {
  const auto [on, own] = parts_of(handle);
  if (on == nullptr || offset != 0) return kInvalidValue;
  return counted(*on, [&, own = own](SimulatedDriver& gpu) { return gpu.map(address, size, own); });
}

Result set_access(DevicePointer address, std::size_t size, const AccessDescription*, std::size_t) {
  return at_address([&](SimulatedDriver& gpu) { return gpu.set_access(address, size); });
}

Result unmap(DevicePointer address, std::size_t size) {
  return at_address([&](SimulatedDriver& gpu) { return gpu.unmap(address, size); });
}

constexpr DriverCalls kCalls{
    .cuInit = init,
    .cuDriverGetVersion = driver_version,
    .cuGetErrorName = error_name,
    .cuGetErrorString = error_string,
    .cuDeviceGetCount = device_count,
    .cuDeviceGet = device_get,
    .cuDeviceTotalMem_v2 = device_total,
    .cuDeviceGetAttribute = device_attribute,
    .cuDevicePrimaryCtxRetain = retain_context,
    .cuDevicePrimaryCtxRelease_v2 = release_context,
    .cuCtxGetCurrent = get_context,
    .cuCtxSetCurrent = set_context,
    .cuCtxGetDevice = context_device,
    .cuCtxSynchronize = synchronize,
    .cuMemGetInfo_v2 = memory_info,
    .cuMemAlloc_v2 = allocate,
    .cuMemFree_v2 = deallocate,
    .cuMemcpy = copy,
    .cuMemcpyHtoD_v2 = copy_to_device,
    .cuMemcpyDtoH_v2 = copy_to_host,
    .cuMemcpyDtoD_v2 = copy,
    .cuMemsetD8_v2 = fill,
    .cuMemAddressReserve = reserve,
    .cuMemAddressFree = unreserve,
    .cuMemGetAllocationGranularity = granularity,
    .cuMemCreate = create,
    .cuMemRelease = release,
    .cuMemMap = map,
    .cuMemSetAccess = set_access,
    .cuMemUnmap = unmap,
};

std::uintptr_t answer(const nb::list& served, std::uintptr_t current_device,
                      std::uintptr_t set_device, std::uintptr_t use, std::uintptr_t pin,
                      std::uintptr_t unpin) {
  cards.clear();
  for (const nb::handle row : served) {
    const auto each = nb::cast<nb::tuple>(row);
    cards.push_back({.gpu = nb::cast<SimulatedDriver*>(each[0]),
                     .total = nb::cast<Bytes>(each[1]),
                     .multiprocessors = nb::cast<int>(each[2]),
                     .major = nb::cast<int>(each[3]),
                     .minor = nb::cast<int>(each[4])});
  }
  runtime = {.current_device = reinterpret_cast<int (*)()>(current_device),
             .set_device = reinterpret_cast<int (*)(int)>(set_device),
             .use = reinterpret_cast<void (*)(int)>(use),
             .pin = reinterpret_cast<int (*)(void*, std::size_t)>(pin),
             .unpin = reinterpret_cast<int (*)(void*)>(unpin)};
  return reinterpret_cast<std::uintptr_t>(&kCalls);
}

std::tuple<Bytes, Bytes, std::uint64_t> use_of(int device) {
  const auto exclusive = exclude_simulated_gpus();
  const Card* const found = card(device);
  if (found == nullptr) return {};
  return {found->taken, found->most_taken, found->refusals};
}

}  // namespace

const DriverCalls& simulated_driver() { return kCalls; }
const SimulatedRuntime& simulated_runtime() { return runtime; }

void bind_cuda_calls(nb::module_& module) {
  module.def("answer_cuda", &answer, "cards"_a, "current_device"_a, "set_device"_a, "use"_a,
             "pin"_a, "unpin"_a,
             nb::sig("def answer_cuda(cards: list[tuple[SimulatedDriver, int, int, int, int]], "
                     "current_device: int, set_device: int, use: int, pin: int, unpin: int) "
                     "-> int"),
             "The address of the table of libcuda/calls.h, which answers from these GPUs from now\n"
             "on. They have to outlive the process's last call. A row is a GPU, the bytes of its\n"
             "card, its multiprocessors, and its compute capability. The other numbers are the\n"
             "addresses of C functions of the simulated CUDA runtime.");
  module.def(
      "use_by_cuda", &use_of, "device"_a,
      "The memory of a card that the program holds by the driver's API, the most that it held\n"
      "at once, both in bytes, and how often the driver refused it memory.");
  module.def(
      "size_read_by_cuda", [] { return size_was_read; },
      "Whether the program has read a card's size by the driver's API.");
  module.def(
      "copied_by_cuda", [] { return has_copied; },
      "Whether the program has copied memory of a card by the driver's API.");
}

}  // namespace plimsoll::python
