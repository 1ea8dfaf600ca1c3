// Host time of Python actions that are no operations, in ns. Measured on the hosts of several H200s
// and H100s (benchmarks/host.py, steps.py).
#pragma once

namespace plimsoll::simulated {

constexpr double kCopyHostNs = 20000;
constexpr double kDeviceCopyHostNs = 11000;
constexpr double kEventHostNs = 20000;
constexpr double kGraphHostNs = 15000;
constexpr double kRecordStreamHostNs = 12000;
constexpr double kSetStreamHostNs = 12000;
// One event of PyTorch's memory history, with its call stack.
constexpr double kHistoryHostNs = 10000;
// One kernel launch from Python. Estimated, not measured.
constexpr double kPythonLaunchNs = 9000;

}  // namespace plimsoll::simulated
