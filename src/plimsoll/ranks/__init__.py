"""Recordings of many ranks beside each other: who ran out, who stands out, who does the same."""

from plimsoll.ranks.explain_ranks import RanksExplanation, explain_ranks
from plimsoll.ranks.view_ranks import RanksViewResult, serve_ranks, view_ranks

__all__ = [
    "RanksExplanation",
    "RanksViewResult",
    "explain_ranks",
    "serve_ranks",
    "view_ranks",
]
