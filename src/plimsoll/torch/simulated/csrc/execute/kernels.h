// Functions that register hand-written kernels: one for each file of such kernels in this folder.
#pragma once

#include "operation/written_out.h"

namespace plimsoll::simulated {

void add_storage_kernels(WrittenOut& kernels);
void add_copy_kernels(WrittenOut& kernels);
void add_reading_kernels(WrittenOut& kernels);
void add_selecting_kernels(WrittenOut& kernels);
void add_choices(WrittenOut& kernels);
void add_launches(WrittenOut& kernels);
void add_launches_at_addresses(WrittenOut& kernels);

}  // namespace plimsoll::simulated
