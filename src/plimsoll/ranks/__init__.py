"""Recordings of many ranks beside each other: who ran out, who stands out, who does the same."""

from plimsoll.ranks.explain_ranks import RanksExplanation, explain_ranks

__all__ = ["RanksExplanation", "explain_ranks"]
