// Makes allocators by name; no other file makes them.
#pragma once

#include <array>
#include <memory>
#include <string_view>

#include "plimsoll/allocator/elastic/elastic.h"
#include "plimsoll/allocator/native/native.h"
#include "plimsoll/allocator/wheel/wheel.h"

namespace plimsoll {

// "native" follows PyTorch's rules, "elastic" is plimsoll's own, "uncached" makes a driver call for
// each request.
inline constexpr std::array<std::string_view, 3> kAllocatorNames{"native", "elastic", "uncached"};

struct NamedAllocator {
  std::unique_ptr<Allocator> allocator;
  // If `allocator` has one of these three types, the pointer of that type points to `allocator`.
  // The other pointers are null.
  NativeAllocator* native = nullptr;
  ElasticAllocator* elastic = nullptr;
  WheelAllocator* wheel = nullptr;
};

// Makes an allocator. `conf` has the form of PYTORCH_CUDA_ALLOC_CONF; the uncached allocator
// ignores it. With a `wheel`, PyTorch's own allocator from that wheel replaces `native`. If `name`
// is unknown, throws std::invalid_argument, which lists the names. Throws ConfigError if `conf` is
// not valid.
[[nodiscard]] NamedAllocator make_allocator(std::string_view name, Driver& driver,
                                            std::string_view conf, TorchVersion version, int device,
                                            const plimsoll_wheel_api* wheel = nullptr);

}  // namespace plimsoll
