// The shortest program that shows a difference, as far as leaving out operations finds it.
#pragma once

#include <functional>

#include "program.h"

// `differs` says whether a program still shows one; it does for `program`.
[[nodiscard]] Program shrink(Program program, const std::function<bool(const Program&)>& differs);
