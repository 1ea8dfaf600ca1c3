// Records the events of the CUDA allocator that PyTorch uses, its own or plimsoll's, into a buffer.
//
// The recorder attaches a tracker to the allocator: a function that the allocator calls for each
// event. PyTorch's allocator holds its lock during this call, so the tracker must not wait for the
// interpreter's lock. Therefore a request's call stack gets a number earlier, when PyTorch gathers
// the stack. The tracker reads the number from a thread-local variable. A tracker cannot be
// removed, so it is still called after the recording has stopped. It then drops the events.
#pragma once

#include "plimsoll/recorder_api.h"
#include "versions.h"

namespace plimsoll::live {

// Starts to write events to `buffer`. With `stacks`, it replaces the function by which PyTorch
// gathers stacks, so PyTorch's own history has no stacks. Throws if the current allocator cannot be
// tracked.
void start_recording(const plimsoll_recorder_api* api, plimsoll_event_buffer* buffer, bool stacks);

// Stops writing events. With `gives_back_stacks`, it also removes the function for gathering stacks
// that start_recording has set; that function must still be in place.
void stop_recording(bool gives_back_stacks);

}  // namespace plimsoll::live
