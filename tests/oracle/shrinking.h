// Finds a short program that still shows a difference, by leaving out operations.
#pragma once

#include <functional>

#include "program.h"

// Returns a short program for which `differs` is still true. The caller passes a `program` for
// which `differs` is true.
[[nodiscard]] Program shrink(Program program, const std::function<bool(const Program&)>& differs);
