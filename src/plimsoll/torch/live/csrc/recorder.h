// Records what CUDA's allocator does, PyTorch's own or ours, into a buffer of plimsoll's.
//
// PyTorch calls those who follow its events with the allocator's lock held, where nobody may wait
// for the interpreter; so a call stack gets its number before that, where PyTorch asks for the
// stack of a request, and its events find the number through the thread. PyTorch never forgets a
// follower: after the end of a recording, events still come here, and go no further.
#pragma once

#include "plimsoll/recorder_api.h"
#include "versions.h"

namespace plimsoll::live {

// Lets events go to `buffer`. With `stacks`, PyTorch's place for gathering stacks is taken, which
// its own history also needs. Throws if the allocator in use cannot be followed.
void start_recording(const plimsoll_recorder_api* api, plimsoll_event_buffer* buffer, bool stacks);

// `gives_back_stacks`: the place for gathering stacks is still ours.
void stop_recording(bool gives_back_stacks);

}  // namespace plimsoll::live
