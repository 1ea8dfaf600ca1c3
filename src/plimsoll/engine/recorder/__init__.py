"""From the events of a running program to a file, which a thread writes: begin with `recorder`."""
