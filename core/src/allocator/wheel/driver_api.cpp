#include "plimsoll/allocator/wheel/wheel.h"

namespace plimsoll {
namespace {

Driver& of(plimsoll_driver* driver) { return *reinterpret_cast<Driver*>(driver); }

int code(Status status) {
  switch (status) {
    case Status::success: return PLIMSOLL_SUCCESS;
    case Status::out_of_memory: return PLIMSOLL_OUT_OF_MEMORY;
    case Status::not_ready: return PLIMSOLL_NOT_READY;
    default: return PLIMSOLL_FAILED;
  }
}

// Calls the driver's `Function` with these numbers, and returns the resulting status as a code.
template <auto Function, typename... Numbers>
int call(plimsoll_driver* driver, Numbers... numbers) {
  return code((of(driver).*Function)(numbers...));
}
// Calls the driver's `Function` with one number, and stores the result in `made`. For example,
// `reserve` takes a size and makes an address.
template <auto Function>
int make(plimsoll_driver* driver, std::uint64_t of_what, std::uint64_t* made) {
  return code((of(driver).*Function)(of_what, *made));
}

int create(plimsoll_driver* driver, std::uint64_t size, std::uint64_t* handle) {
  return code(of(driver).create(size, Tier::dedicated, *handle));
}
int synchronize_event(plimsoll_driver* driver, std::uint64_t event) {
  return code(of(driver).synchronize(event));
}
int synchronize(plimsoll_driver* driver) { return code(of(driver).synchronize()); }
void memory_info(plimsoll_driver* driver, std::uint64_t* free, std::uint64_t* total,
                 std::uint64_t* used) {
  const MemoryInfo memory = of(driver).memory_info();
  *free = memory.free;
  *total = memory.total;
  *used = memory.total - memory.free - memory.used_by_others;
}

}  // namespace

const plimsoll_driver_api& driver_api() {
  using Number = std::uint64_t;
  static constexpr plimsoll_driver_api api{
      make<&Driver::allocate>,
      call<&Driver::deallocate, Number>,
      make<&Driver::reserve>,
      call<&Driver::unreserve, Number, Number>,
      create,
      call<&Driver::release, Number>,
      call<&Driver::map, Number, Number, Number>,
      call<&Driver::set_access, Number, Number>,
      call<&Driver::unmap, Number, Number>,
      make<&Driver::record>,
      call<&Driver::query, Number>,
      synchronize_event,
      call<&Driver::destroy, Number>,
      call<&Driver::synchronize_stream, Number>,
      synchronize,
      memory_info,
  };
  return api;
}

}  // namespace plimsoll
