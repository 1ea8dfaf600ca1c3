#include "plimsoll/driver/driver.h"

namespace plimsoll {

std::string_view to_string(Status status) {
  switch (status) {
    case Status::success: return "success";
    case Status::out_of_memory: return "out of memory";
    case Status::invalid_value: return "invalid value";
    case Status::not_ready: return "not ready";
    case Status::not_supported: return "not supported";
    case Status::not_permitted: return "not permitted";
    case Status::device_lost: return "device lost";
    case Status::driver_gone: return "driver gone";
    case Status::failed: return "failed";
  }
  return "unknown";
}

}  // namespace plimsoll
