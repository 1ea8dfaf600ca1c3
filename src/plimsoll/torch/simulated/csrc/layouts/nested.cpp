// Nested tensors in strided layout. Those in jagged layout are composed in Python.
#include "layouts.h"

namespace plimsoll::simulated {

void add_nested_kernels(LayoutKernels&) {}

}  // namespace plimsoll::simulated
