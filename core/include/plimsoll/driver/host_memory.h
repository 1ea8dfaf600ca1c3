// The machine's memory that this process may use. In a container, the container's limits apply too.
#pragma once

#include <string>

#include "plimsoll/driver/driver.h"

namespace plimsoll {

// Reads Linux's /proc and the process's control groups (both versions). Memory that the page cache
// can give back counts as free. Returns {0, 0} where the system reports nothing. All paths begin
// with `root`; it is empty except in tests.
[[nodiscard]] MemoryInfo host_memory(const std::string& root = "");

}  // namespace plimsoll
