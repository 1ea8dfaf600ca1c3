// Reads the Python frames of the calling thread, and finds the line number of each.
#pragma once

#include "stacks.h"

namespace plimsoll::python {

// Fills `stack` with the calling thread's frames. Takes the interpreter's lock only in versions of
// Python whose frame layout is not known here.
void gather_frames(Stack& stack);

// Returns a frame's line number; -1 if its instruction has none. Needs the interpreter's lock.
int line_of(const Frame& frame);

}  // namespace plimsoll::python
