// Records the events of CUDA's allocator, PyTorch's own or plimsoll's, into a buffer.
//
// PyTorch calls trackers with the allocator's lock held, so a tracker must not wait for the
// interpreter's lock. The call stack therefore gets its number earlier, when PyTorch gathers the
// stack of a request, and the events find the number through a thread-local variable. PyTorch never
// removes a tracker: after a recording its events still arrive here and are dropped.
#pragma once

#include "plimsoll/recorder_api.h"
#include "versions.h"

namespace plimsoll::live {

// Starts to write events to `buffer`. With `stacks`, it replaces PyTorch's function for gathering
// stacks, which PyTorch's own history also needs. Throws if the current allocator cannot be
// tracked.
void start_recording(const plimsoll_recorder_api* api, plimsoll_event_buffer* buffer, bool stacks);

// Stops writing events. `gives_back_stacks`: the function for gathering stacks is still ours.
void stop_recording(bool gives_back_stacks);

}  // namespace plimsoll::live
