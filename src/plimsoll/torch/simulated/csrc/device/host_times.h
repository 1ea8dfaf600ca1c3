// The host's time, in ns, for Python actions that are not operations. Measured on the hosts of
// several H200s and H100s (benchmarks/host.py, steps.py).
#pragma once

namespace plimsoll::simulated {

constexpr double kCopyHostNs = 20000;
constexpr double kDeviceCopyHostNs = 11000;
constexpr double kEventHostNs = 20000;
constexpr double kGraphHostNs = 15000;
constexpr double kRecordStreamHostNs = 12000;
constexpr double kSetStreamHostNs = 12000;
// Recording one event of PyTorch's memory history, with its call stack.
constexpr double kHistoryHostNs = 10000;
// Launching one kernel from Python. Estimated, not measured.
constexpr double kPythonLaunchNs = 9000;

}  // namespace plimsoll::simulated
