// Calls a pluggable allocator's functions as PyTorch does: with types of libstdc++.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <utility>

struct CUstream_st;
using Stream = CUstream_st*;
using Pool = std::pair<std::uint64_t, std::uint64_t>;

namespace {

std::shared_ptr<int> held = std::make_shared<int>(0);

// Makes a call. Returns 0 if it succeeds, or 1 with the exception's message in `text`. Returns 2
// for an exception that this library's C++ runtime does not know.
template <typename Call>
int caught(char* text, std::size_t capacity, Call call) {
  try {
    call();
    return 0;
  } catch (const std::exception& error) {
    std::strncpy(text, error.what(), capacity - 1);
    return 1;
  } catch (...) {
    return 2;
  }
}

}  // namespace

extern "C" int caller_allocate(void* function, std::size_t size, std::uintptr_t* address,
                               char* text, std::size_t capacity) {
  const std::function<void*(std::size_t, int, Stream)> allocate =
      reinterpret_cast<void* (*)(std::size_t, int, Stream)>(function);
  return caught(text, capacity,
                [&] { *address = reinterpret_cast<std::uintptr_t>(allocate(size, 0, nullptr)); });
}

// Sends one stream's requests to the pool. The filter that chooses the stream has a copy of `held`,
// so caller_holders() shows whether the allocator has freed the filter.
extern "C" int caller_begin(void* function, std::uint64_t pool, std::uintptr_t stream, char* text,
                            std::size_t capacity) {
  const std::function<void(int, Pool, std::function<bool(Stream)>)> begin =
      reinterpret_cast<void (*)(int, Pool, std::function<bool(Stream)>)>(function);
  return caught(text, capacity, [&] {
    begin(0, {0, pool}, [stream, kept = held](Stream one) {
      *kept += 1;
      return reinterpret_cast<std::uintptr_t>(one) == stream;
    });
  });
}

extern "C" int caller_end(void* function, std::uint64_t pool, char* text, std::size_t capacity) {
  const std::function<void(int, Pool)> end = reinterpret_cast<void (*)(int, Pool)>(function);
  return caught(text, capacity, [&] { end(0, {0, pool}); });
}

extern "C" long caller_holders() { return held.use_count(); }
extern "C" int caller_asked() { return *held; }
