"""Records the events of a running program to a file, on a thread; begin with `recorder`."""
