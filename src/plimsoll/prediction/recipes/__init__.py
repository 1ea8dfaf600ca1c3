"""plimsoll's own scripts, for users who name only a model. Begin with `recipe`."""
