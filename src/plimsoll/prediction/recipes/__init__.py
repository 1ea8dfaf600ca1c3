"""plimsoll's own scripts, for users who name only a model. The function `recipe` finds one."""
