"""Records the events of a running program to a file, in a thread; begin with `recorder`."""
