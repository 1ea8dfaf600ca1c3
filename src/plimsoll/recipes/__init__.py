"""Scripts that come with plimsoll, for people who have a model's name and a card."""

from plimsoll.recipes.recipe import RECIPES, Recipe, recipe, title_of

__all__ = ["RECIPES", "Recipe", "recipe", "title_of"]
