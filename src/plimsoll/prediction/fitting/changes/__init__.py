"""Changes to a script that reduce its memory. Each file has one kind of change."""
