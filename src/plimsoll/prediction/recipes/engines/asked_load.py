"""Parses the options for a serving engine's load, and makes the requests' lengths and tokens."""

import argparse
import sys
from pathlib import Path

STEPS = 100
SHORTEST = 16


def asked_load(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Returns the options for the load, and the remaining arguments, which are the engine's."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--requests", type=int, help="how many")
    parser.add_argument("--input-len", type=int, default=1024, help="tokens of each prompt")
    parser.add_argument("--output-len", type=int, default=128, help="tokens of each answer")
    parser.add_argument("--lengths", type=Path, help="a file with both lengths of each request")
    return parser.parse_known_args(arguments)


def asked_lengths(load: argparse.Namespace) -> list[tuple[int, int]] | None:
    """Returns the lengths of each request's prompt and answer; None if no option sets them."""
    if load.lengths is not None:
        return read_lengths(load.lengths)
    return None if load.requests is None else [(load.input_len, load.output_len)] * load.requests


def read_lengths(path: Path) -> list[tuple[int, int]]:
    """Reads a file with a line for each request: the tokens of its prompt and of its answer."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"--lengths {path}: cannot be read: {error}")
    pairs = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or not all(word.isascii() and word.isdecimal() for word in words):
            sys.exit(f"--lengths {path}, line {number}: two numbers are expected, not {line!r:.80}")
        pairs.append((int(words[0]), int(words[1])))
    return pairs


def spread(count: int, most: int) -> list[int]:
    """Returns lengths between 16 and `most`, logarithmically spaced and shuffled."""
    ratio = max(most, SHORTEST) / SHORTEST
    return [round(SHORTEST * ratio ** (i * 0.618 % 1)) for i in range(count)]


def tokens(number: int, count: int, vocabulary: int) -> list[int]:
    """Returns made-up tokens for one request. Different requests begin with different tokens."""
    return [(7 * number + i) % vocabulary for i in range(count)]
