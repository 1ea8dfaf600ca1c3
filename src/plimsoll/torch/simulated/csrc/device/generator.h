// The random generators of CUDA devices.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

namespace plimsoll::simulated {

// A negative number is the current device.
const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator new_generator(c10::DeviceIndex index);
// While true, a new generator is the device's default one.
void make_next_generator_default(bool value);
// Whether the program chose the seed of a generator of a device.
bool has_chosen_seed(const at::Generator& generator);

}  // namespace plimsoll::simulated
