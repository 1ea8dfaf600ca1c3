// The frames of the calling thread, as the interpreter keeps them.
#pragma once

#include "stacks.h"

namespace plimsoll::python {

// Fills `stack` with the calling thread's frames. Takes the interpreter's lock only in versions of
// Python whose frames are not known here.
void gather_frames(Stack& stack);

}  // namespace plimsoll::python
