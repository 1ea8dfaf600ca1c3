// Copies between host and device, and from device to device.
#include "chips/chip.h"
#include "timing/timing.h"

namespace plimsoll::simulated {

// Measured: 55 bytes/ns from page-locked memory, 22 into and 17 out of memory that is copied to
// such memory first, of 64 that the bus has.
double transfer_ns(double bytes, bool is_pinned, bool to_device, const DeviceProperties& on) {
  const double bus = on.copy_bytes_per_ns;
  if (is_pinned) return 1900 + bytes / bus;
  return 8000 + bytes / (bus * (to_device ? 0.40 : 0.31));
}

// Not measured: 85 % of what NVIDIA states for NVLink; cards without it have the bus.
double peer_ns(double bytes, const DeviceProperties& on) {
  constexpr double kReached = .85;
  const auto stated = static_cast<double>(chip_of(on).link_bytes_per_ns);
  return 4000 + bytes / (stated > 0 ? stated * kReached : on.copy_bytes_per_ns);
}

}  // namespace plimsoll::simulated
