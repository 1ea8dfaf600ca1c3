#include "plimsoll/engine/allocators.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "plimsoll/allocator/uncached.h"

namespace plimsoll {
namespace {

// Returns the allocators' names, as in "native, elastic and uncached".
std::string list_of_names() {
  std::string list;
  for (std::size_t i = 0; i < kAllocatorNames.size(); ++i) {
    if (i > 0) list += i + 1 < kAllocatorNames.size() ? ", " : " and ";
    list += kAllocatorNames[i];
  }
  return list;
}

}  // namespace

NamedAllocator make_allocator(std::string_view name, Driver& driver, std::string_view conf,
                              TorchVersion version, int device, const plimsoll_wheel_api* wheel) {
  NamedAllocator made;
  if (name == "native" && wheel != nullptr) {
    auto own = std::make_unique<WheelAllocator>(*wheel, driver, conf, version, device);
    made.wheel = own.get();
    made.allocator = std::move(own);
  } else if (name == "native") {
    auto native = std::make_unique<NativeAllocator>(driver, AllocatorConfig::parse(conf, version),
                                                    version, device);
    made.native = native.get();
    made.allocator = std::move(native);
  } else if (name == "elastic") {
    auto elastic = std::make_unique<ElasticAllocator>(driver, AllocatorConfig::parse(conf, version),
                                                      version, device);
    made.elastic = elastic.get();
    made.allocator = std::move(elastic);
  } else if (name == "uncached") {
    made.allocator = std::make_unique<UncachedAllocator>(driver, device);
  } else {
    throw std::invalid_argument("unknown allocator '" + std::string(name) + "'; there are " +
                                list_of_names());
  }
  return made;
}

}  // namespace plimsoll
