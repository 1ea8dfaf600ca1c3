"""Makes keys from cards' names, so that a card is found by any spelling of its name."""

from __future__ import annotations

import re

_NOT_LETTERS_OR_DIGITS = re.compile(r"[^a-z0-9]+")
_IGNORED_WORDS = re.compile(r"nvidia|geforce|tesla|quadro|generation|gpu")
_LONGEST = 100


def name_key(name: str) -> str:
    """Returns a card's name in lower case, without spaces, dashes, NVIDIA, GeForce and the like."""
    letters = _NOT_LETTERS_OR_DIGITS.sub("", name.casefold())
    return _IGNORED_WORDS.sub("", letters).replace("mobile", "laptop")


def name_keys(name: str) -> tuple[str, ...]:
    """Returns all keys under which a card of this name is found, with and without "rtx".

    >>> name_keys("NVIDIA GeForce RTX 4090")
    ('4090', 'rtx4090')
    """
    key = name_key(name)
    bare = key.removeprefix("rtx")
    is_rtx = bare != key or bare[:1].isdigit()
    return (bare, "rtx" + bare) if is_rtx else (bare,)


def unusable(name: str) -> str:
    """Returns why a card cannot have this name; "" if it can."""
    if len(name) > _LONGEST or not name.isprintable():
        return f"is no line of at most {_LONGEST} characters"
    if ":" in name:
        return "has a colon, after which --gpu takes a size"
    if not name_keys(name)[0]:
        return "has no letters or digits of its own"
    return ""
