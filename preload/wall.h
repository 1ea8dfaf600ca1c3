// The wall around a trial, a run of a user's program that must leave real files unchanged. The
// trial's processes cannot change files outside the writable folders, whatever they call and
// whichever program they run.
//
// Landlock enforces this for the contents and names of files, but not for their metadata. A seccomp
// filter therefore holds calls until a supervisor has answered them. The supervisor itself refuses
// forbidden changes of metadata. Landlock decides about all other calls; the supervisor only notes
// which program was refused which file.
//
// A supervisor calls these functions with ctypes, in processes without the layer. All return a
// negative errno if they fail.
#pragma once

extern "C" {

// Returns 0 if a wall can be raised here. A child process tries it, so this process is unchanged.
[[gnu::visibility("default")]] int plimsoll_wall_is_possible();

// Raises the wall around this process and all its children. Returns the listener's descriptor,
// which closes at exec. A writable path that is no folder allows writes to that file only; one that
// does not exist is left out. Landlock alone decides about calls that carry `pass`, which is never
// 0.
[[gnu::visibility("default")]] int plimsoll_wall_raise(const char* const* writable, int count,
                                                       unsigned long long pass);

// Answers one call that the listener holds. Returns 0 if it let the call through, 1 if it refused
// the call, -EAGAIN if no call waits, and -ENOENT if the caller has died. After a refusal, `text`
// has the file's path, a newline, and the program's path. Either path is empty if the kernel does
// not let the supervisor inspect the caller.
[[gnu::visibility("default")]] int plimsoll_wall_answer(int listener, const char* const* writable,
                                                        int count, char* text, int size);
}
