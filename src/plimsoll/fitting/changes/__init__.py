"""What can be changed about a script so that it takes less, one kind of change a file."""
