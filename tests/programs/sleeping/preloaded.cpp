// Replaces cudaMalloc and cudaFree if LD_PRELOAD names this library. While `taking` is on, memory
// comes from memory.cpp and can leave the card. Otherwise memory comes from CUDA.
#include <dlfcn.h>

#include <cstddef>

extern "C" {
void* sleeping_malloc(size_t size, int device, void* stream);
void sleeping_free(void* address, size_t size, int device, void* stream);
size_t sleeping_count();
int cudaGetDevice(int*);
int cudaMallocHost(void**, size_t);
int cudaFreeHost(void*);
int cudaMemcpy(void*, const void*, size_t, int);
}

namespace {
bool taking = false;
}

extern "C" void take_memory(bool on) { taking = on; }

extern "C" int cudaMalloc(void** address, size_t size) {
  if (!taking) {
    const auto next = reinterpret_cast<int (*)(void**, size_t)>(dlsym(RTLD_NEXT, "cudaMalloc"));
    return next(address, size);
  }
  int device = 0;
  if (cudaGetDevice(&device) != 0) return 999;
  *address = sleeping_malloc(size, device, nullptr);
  return *address == nullptr ? 2 : 0;
}

extern "C" int cudaFree(void* address) {
  const size_t before = sleeping_count();
  sleeping_free(address, 0, 0, nullptr);
  if (sleeping_count() < before) return 0;
  const auto next = reinterpret_cast<int (*)(void*)>(dlsym(RTLD_NEXT, "cudaFree"));
  return next(address);
}

// Copies memory of the card to new page-locked memory. Returns that memory's address.
extern "C" void* copy_to_host(void* from, size_t size) {
  void* copy = nullptr;
  if (cudaMallocHost(&copy, size) != 0 || cudaMemcpy(copy, from, size, 2) != 0) return nullptr;
  return copy;
}
extern "C" int free_copy(void* copy) { return cudaFreeHost(copy); }
