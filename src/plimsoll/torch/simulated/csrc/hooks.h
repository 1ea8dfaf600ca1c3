// Device guard, allocator and random generators, put in PyTorch's places for them.
#pragma once

#include <ATen/core/Generator.h>

namespace plimsoll::simulated {

// Again after PyTorch is loaded: a CUDA build sets its own then.
void install_guard();
// Whether the program chose the seed of a generator of a device.
bool has_chosen_seed(const at::Generator& generator);

// While true, a new generator is the device's default one.
void make_next_generator_default(bool value);

}  // namespace plimsoll::simulated
