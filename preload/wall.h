// The wall around a trial: its processes cannot change files outside the writable folders, whatever
// they call and whichever program they run.
//
// Landlock enforces this for contents and names. Changes of metadata, which Landlock does not
// cover, are enforced by the seccomp filter and the supervisor that listens to it. For all other
// calls the supervisor only learns which file was refused to which program.
//
// A supervisor calls these functions with ctypes, in processes without the layer. All return a
// negative errno where they fail.
#pragma once

extern "C" {

// 0 if a wall can be raised here. A child tries it, so this process stays as it is.
[[gnu::visibility("default")]] int plimsoll_wall_is_possible();

// Raises the wall around this process and all that it starts. Returns the listener's file, which
// closes at exec. A writable path that is no folder may be written to, and nothing else; one that
// does not exist is left out. Every call that carries `pass` (never 0) is let through to Landlock.
[[gnu::visibility("default")]] int plimsoll_wall_raise(const char* const* writable, int count,
                                                       unsigned long long pass);

// Answers one call that the listener holds. Returns 0 if the call was let through, and 1 if it was
// refused: `text` then has the file's path, a newline, and the program's path. Either is empty
// where the supervisor may not look into the caller. -EAGAIN: none waits. -ENOENT: the caller has
// died.
[[gnu::visibility("default")]] int plimsoll_wall_answer(int listener, const char* const* writable,
                                                        int count, char* text, int size);
}
