"""Records a running program's events. A thread writes them to a file. Begin with `recorder`."""
