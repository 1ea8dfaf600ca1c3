// Programs that the layer cannot see into, because they call the kernel without libc: they write to
// real files.
#pragma once

namespace plimsoll::scratch {

// Note the program at `path`, if it is such a one, in the layer's folder; a script for its
// interpreter. What cannot be read is taken for one that will not start. With its arguments: some
// programs then write nothing.
void note_if_unseen(const char* path, char* const* arguments);

}  // namespace plimsoll::scratch
