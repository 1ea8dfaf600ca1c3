// The allocators by name: the one place that makes them.
#pragma once

#include <array>
#include <memory>
#include <string_view>

#include "plimsoll/allocator/elastic/elastic.h"
#include "plimsoll/allocator/native/native.h"
#include "plimsoll/allocator/wheel/wheel.h"

namespace plimsoll {

// PyTorch's rules; plimsoll's own; a driver call for each request.
inline constexpr std::array<std::string_view, 3> kAllocatorNames{"native", "elastic", "uncached"};

struct NamedAllocator {
  std::unique_ptr<Allocator> allocator;
  // The allocator itself, if it is one of these.
  NativeAllocator* native = nullptr;
  ElasticAllocator* elastic = nullptr;
  WheelAllocator* wheel = nullptr;
};

// `conf` is as PYTORCH_CUDA_ALLOC_CONF; the uncached allocator does without. Where there is a
// `wheel`, PyTorch's own allocator in it serves instead of `native`. Throws std::invalid_argument,
// with the names that there are, if this is none of them, and ConfigError.
[[nodiscard]] NamedAllocator make_allocator(std::string_view name, Driver& driver,
                                            std::string_view conf, TorchVersion version, int device,
                                            const plimsoll_wheel_api* wheel = nullptr);

}  // namespace plimsoll
