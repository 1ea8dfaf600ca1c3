"""Scripts that run a serving engine under a load. plimsoll runs them, and does not import them."""
