"""Scripts that run a serving engine under a load; plimsoll imports none of them."""
