"""The scripts of the recipes. A user can run one, or copy it with `Recipe.saved` and change it.

Each stands alone: code that several scripts need is repeated in each.
"""
