// The time that each driver call takes; for some calls it grows with the size of the memory.
#pragma once

#include "plimsoll/base/units.h"
#include "plimsoll/driver/driver.h"

namespace plimsoll {

// A time that grows with the size: `at_granule` ns for 2 MiB, `at_512_mib` ns for 512 MiB, linear
// between and beyond.
struct Price {
  double at_granule = 0;
  double at_512_mib = 0;
  [[nodiscard]] double of(Bytes size) const;
};

// How many nanoseconds each call takes, measured on one H100 80GB (driver 580, CUDA 13.0, PCIe
// Gen5). Each value is the middle of the measured range.
struct CostModel {
  Price allocate{35'000, 70'000};
  Price deallocate{37'000, 170'000};
  Price create{10'000, 22'000};
  Price release{16'000, 180'000};
  double reserve = 2'000;
  double map_per_handle = 3'000;
  double set_access_per_handle = 29'000;
  double unmap_per_handle = 22'000;
  double event = 1'000;
  double host_bytes_per_ns = 5.65;            // 1 GiB of host memory pinned in 0.19 s
  double copy_bytes_per_ns = 55.0;            // between host and device, pinned, in each direction
  double device_copy_bytes_per_ns = 1'515.0;  // half of 3029 GB/s, which counts reads and writes

  // Returns the nanoseconds that page-locking host memory takes.
  [[nodiscard]] double of_locking(Bytes size) const {
    return static_cast<double>(size) / host_bytes_per_ns;
  }
  [[nodiscard]] double of_copy(Bytes size, Tier to, Tier from) const {
    const bool on_card = to == Tier::dedicated && from == Tier::dedicated;
    return static_cast<double>(size) / (on_card ? device_copy_bytes_per_ns : copy_bytes_per_ns);
  }
};

}  // namespace plimsoll
