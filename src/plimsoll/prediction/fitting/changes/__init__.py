"""Changes of a script that reduce its memory, one kind a file."""
