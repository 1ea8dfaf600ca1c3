"""The changes to a script that save memory, one kind of change a file."""
