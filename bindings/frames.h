// Reads the frames of the calling thread, and their lines.
#pragma once

#include "stacks.h"

namespace plimsoll::python {

// Fills `stack` with the calling thread's frames. Takes the interpreter's lock only in versions of
// Python whose frame layout is not known here.
void gather_frames(Stack& stack);

// Returns the line of a frame, -1 for none. Needs the interpreter's lock.
int line_of(const Frame& frame);

}  // namespace plimsoll::python
