// The table of what operations take, by name.
#pragma once

#include <cstdint>

namespace plimsoll::simulated {

class Call;

// A row of data/kernel_times.csv, which says what the columns are.
struct KernelTime {
  const char* name;
  std::int64_t start_ns, row_ps, moved_permille, element_fs, touches, host_ns, plan_us;
};

// The row of an operation with such operands; null where there is none.
const KernelTime* kernel_time(const Call& call);

}  // namespace plimsoll::simulated
