// Records the events of the CUDA allocator that PyTorch uses, its own or plimsoll's, into a buffer.
//
// PyTorch calls trackers while it holds the allocator's lock, so a tracker must not wait for the
// interpreter's lock. Therefore the call stack gets its number earlier, when PyTorch gathers the
// stack of a request; the tracker reads the number from a thread-local variable. PyTorch never
// removes a tracker, so it still calls this one after the recording. The tracker then drops the
// events.
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
