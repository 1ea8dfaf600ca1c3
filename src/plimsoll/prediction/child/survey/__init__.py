"""What the simulated program is made of that could be changed."""
