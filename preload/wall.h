// The wall around a trial, a run of a user's program that must leave real files unchanged. The
// trial's processes cannot change files outside the writable folders, whatever they call and
// whichever program they run.
//
// Landlock enforces this for the contents and names of files, but not for their metadata. So a
// seccomp filter also holds each call that could change a file, until a supervisor has answered the
// call. The supervisor refuses each call that it judges forbidden, and notes the file and the
// program. Landlock still applies to each call that the supervisor lets through.
//
// Python code calls these functions with ctypes, in processes that do not use the scratch layer
// (layer.h) themselves. All functions return a negative errno if they fail.
#pragma once

extern "C" {

// Returns 0 if a wall can be raised here. A child process tries it, so this process is unchanged.
[[gnu::visibility("default")]] int plimsoll_wall_is_possible();

// Raises the wall around this process and all its children. Returns the descriptor from which the
// supervisor reads the held calls; exec closes this descriptor. A writable path is a file, or a
// folder with everything below it. A writable path that does not exist is ignored. `pass` is a
// number other than 0 that the scratch layer puts into the sixth argument of its own calls. The
// filter does not hold calls with this number, so only Landlock checks them.
[[gnu::visibility("default")]] int plimsoll_wall_raise(const char* const* writable, int count,
                                                       unsigned long long pass);

// Answers one call that the listener holds. Returns 0 if it let the call through, 1 if it refused
// the call, -EAGAIN if no call waits, and -ENOENT if the caller has died. After a refusal, `text`
// has the file's path, a newline, and the program's path. Either path is empty if the kernel does
// not let the supervisor inspect the caller.
[[gnu::visibility("default")]] int plimsoll_wall_answer(int listener, const char* const* writable,
                                                        int count, char* text, int size);
}
