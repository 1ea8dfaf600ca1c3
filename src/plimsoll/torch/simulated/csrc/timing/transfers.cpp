// Copies between host and device, and from device to device.
#include "chips/chip.h"
#include "timing/timing.h"

namespace plimsoll::simulated {

// Measured rates in bytes/ns: 55 for page-locked memory; for pageable memory, 22 to the device and
// 17 from the device. Pageable memory is slower because it is copied through page-locked memory.
// The bus's specified rate is 64.
double transfer_ns(double bytes, bool is_pinned, bool to_device, const DeviceProperties& on) {
  const double bus = on.copy_bytes_per_ns;
  if (is_pinned) return 1900 + bytes / bus;
  return 8000 + bytes / (bus * (to_device ? 0.40 : 0.31));
}

// Estimated, not measured: 85 % of NVIDIA's figure for NVLink. Cards without NVLink use the bus.
double peer_ns(double bytes, const DeviceProperties& on) {
  constexpr double kReached = .85;
  const auto stated = static_cast<double>(chip_of(on).link_bytes_per_ns);
  return 4000 + bytes / (stated > 0 ? stated * kReached : on.copy_bytes_per_ns);
}

}  // namespace plimsoll::simulated
