// How much memory this machine has for the process: a container's limits count as well.
#pragma once

#include <string>

#include "plimsoll/driver/driver.h"

namespace plimsoll {

// From Linux's /proc and the control groups (both versions) that the process is in. What the page
// cache can give back is free. {0, 0} where nothing is told. `root` is where the files are.
[[nodiscard]] MemoryInfo host_memory(const std::string& root = "");

}  // namespace plimsoll
