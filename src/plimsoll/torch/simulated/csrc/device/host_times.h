// What the host needs for what is no operation, in a script of Python, in ns. Measured on the hosts
// of several H200s and H100s (benchmarks/host.py, steps.py).
#pragma once

namespace plimsoll::simulated {

constexpr double kCopyHostNs = 20000;
constexpr double kDeviceCopyHostNs = 11000;
constexpr double kEventHostNs = 20000;
constexpr double kGraphHostNs = 15000;
constexpr double kRecordStreamHostNs = 12000;
constexpr double kSetStreamHostNs = 12000;
// What PyTorch's history of memory costs for each event, with its call stack.
constexpr double kHistoryHostNs = 10000;
// What a launch from Python takes. Estimated, not measured.
constexpr double kPythonLaunchNs = 9000;

}  // namespace plimsoll::simulated
