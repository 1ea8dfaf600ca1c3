"""Scripts that come with plimsoll, for a model's name and a card: begin with `recipe`."""
