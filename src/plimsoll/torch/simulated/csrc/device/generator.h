// The random generators of CUDA devices.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

namespace plimsoll::simulated {

// Returns a device's generator; a negative number means the current device.
const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator new_generator(c10::DeviceIndex index);
// Makes a new generator the device's default one while true.
void make_next_generator_default(bool value);
// Returns whether the program chose the seed of a device's generator.
bool has_chosen_seed(const at::Generator& generator);

}  // namespace plimsoll::simulated
