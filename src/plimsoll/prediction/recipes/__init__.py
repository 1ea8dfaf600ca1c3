"""Scripts of plimsoll for a model's name and a card: begin with `recipe`."""
