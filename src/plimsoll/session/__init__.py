"""What puts the packages together in a program."""
