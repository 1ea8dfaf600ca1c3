// An allocator for torch.cuda.MemPool. It calls NVIDIA's driver so that its memory can leave the
// card and come back at the same address. The types below have the layout of the driver's types.
#include <cstddef>
#include <mutex>
#include <vector>

extern "C" {
struct Location {
  int type;  // 1: CU_MEM_LOCATION_TYPE_DEVICE
  int id;
};
struct Properties {
  int type;  // 1: CU_MEM_ALLOCATION_TYPE_PINNED
  int handle_types;
  Location location;
  void* windows_handle;
  unsigned char flags[8];
};
struct Access {
  Location location;
  int access;  // 3: read and write
};
int cuMemAddressReserve(unsigned long long*, size_t, size_t, unsigned long long,
                        unsigned long long);
int cuMemAddressFree(unsigned long long, size_t);
int cuMemCreate(unsigned long long*, size_t, const Properties*, unsigned long long);
int cuMemRelease(unsigned long long);
int cuMemMap(unsigned long long, size_t, size_t, unsigned long long, unsigned long long);
int cuMemSetAccess(unsigned long long, size_t, const Access*, size_t);
int cuMemUnmap(unsigned long long, size_t);
}

namespace {

constexpr size_t kGranule = size_t{2} << 20;

struct Range {
  unsigned long long address;
  size_t size;
  int device, tag;
  unsigned long long handle;
};
std::vector<Range> ranges;
std::mutex mutex;
int current_tag = 0;

bool map(Range& range) {
  Properties properties{};
  properties.type = 1;
  properties.location = {1, range.device};
  if (cuMemCreate(&range.handle, range.size, &properties, 0) != 0) return false;
  const Access access{properties.location, 3};
  return cuMemMap(range.address, range.size, 0, range.handle, 0) == 0 &&
         cuMemSetAccess(range.address, range.size, &access, 1) == 0;
}

}  // namespace

extern "C" void* sleeping_malloc(size_t size, int device, void*) {
  const std::lock_guard lock(mutex);
  Range range{0, (size + kGranule - 1) / kGranule * kGranule, device, current_tag, 0};
  if (cuMemAddressReserve(&range.address, range.size, 0, 0, 0) != 0) return nullptr;
  if (!map(range)) {
    cuMemAddressFree(range.address, range.size);
    return nullptr;
  }
  ranges.push_back(range);
  return reinterpret_cast<void*>(range.address);
}

extern "C" void sleeping_free(void* address, size_t, int, void*) {
  const std::lock_guard lock(mutex);
  for (auto range = ranges.begin(); range != ranges.end(); ++range) {
    if (reinterpret_cast<void*>(range->address) != address) continue;
    cuMemUnmap(range->address, range->size);
    cuMemRelease(range->handle);
    cuMemAddressFree(range->address, range->size);
    ranges.erase(range);
    return;
  }
}

extern "C" void sleeping_tag(int tag) { current_tag = tag; }
extern "C" size_t sleeping_count() { return ranges.size(); }
extern "C" unsigned long long sleeping_address(size_t i) { return ranges[i].address; }
extern "C" size_t sleeping_size(size_t i) { return ranges[i].size; }
extern "C" int sleeping_tag_of(size_t i) { return ranges[i].tag; }
extern "C" int sleeping_unmap(size_t i) {
  const int status = cuMemUnmap(ranges[i].address, ranges[i].size);
  return status != 0 ? status : cuMemRelease(ranges[i].handle);
}
extern "C" int sleeping_map(size_t i) { return map(ranges[i]) ? 0 : 2; }
