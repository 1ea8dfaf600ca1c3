"""Changes of a script that take less memory, one kind of change a file."""
