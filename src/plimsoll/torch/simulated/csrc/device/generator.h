// The random generators of CUDA devices.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

namespace plimsoll::simulated {

// Returns a device's default generator; a negative index means the current device.
const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator new_generator(c10::DeviceIndex index);
// Sets whether `new_generator` returns the device's default generator instead of a new one.
void make_next_generator_default(bool value);
// Returns whether the program chose the generator's seed.
bool has_chosen_seed(const at::Generator& generator);

}  // namespace plimsoll::simulated
