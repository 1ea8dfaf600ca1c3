"""Scripts that run a serving engine under a load; plimsoll does not import them."""
