"""From the events of a recording to what was live, when, and for what.

Nothing here shows anything: events go in as columns, tables come out.
"""

from plimsoll.analysis.block_history import BlockHistory, find_lifetimes
from plimsoll.analysis.categories import Categories, find_categories
from plimsoll.analysis.category_names import CATEGORIES, category_title
from plimsoll.analysis.lifetimes import Lifetimes
from plimsoll.analysis.lines import (
    NO_LINE,
    LineShare,
    is_program,
    is_users,
    last_part,
    renamed,
    short_path,
    source_line,
    source_lines,
)
from plimsoll.analysis.rounding import rounded_sizes
from plimsoll.analysis.segments import SegmentLifetimes, find_segments
from plimsoll.analysis.steps import NO_STEPS, Steps, find_steps
from plimsoll.analysis.stretches import Stretch, Stretches

__all__ = [
    "CATEGORIES",
    "NO_LINE",
    "NO_STEPS",
    "BlockHistory",
    "Categories",
    "Lifetimes",
    "LineShare",
    "SegmentLifetimes",
    "Steps",
    "Stretch",
    "Stretches",
    "category_title",
    "find_categories",
    "find_lifetimes",
    "find_segments",
    "find_steps",
    "is_program",
    "is_users",
    "last_part",
    "renamed",
    "rounded_sizes",
    "short_path",
    "source_line",
    "source_lines",
]
