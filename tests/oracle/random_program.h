// Random programs. The same seed gives the same program.
#pragma once

#include <cstdint>

#include "plimsoll/torch_versions.h"
#include "program.h"

// Returns a program of `operations` operations, with settings that PyTorch `version` knows.
[[nodiscard]] Program random_program(std::uint64_t seed, std::size_t operations,
                                     plimsoll::TorchVersion version);
