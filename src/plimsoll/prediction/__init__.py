"""Predicts the memory of a CUDA script, without a GPU."""

from plimsoll.analysis import LineShare
from plimsoll.prediction.check_parts import Held
from plimsoll.prediction.parts import CATEGORIES, Assumed, CardVerdict, Stopped
from plimsoll.prediction.predict import predict
from plimsoll.prediction.rank_use import RankUse, SharedCard
from plimsoll.prediction.recording_check import Check, check
from plimsoll.prediction.results import Prediction
from plimsoll.trials.kept_apart import KeptApart
from plimsoll.trials.written import Written

__all__ = [
    "CATEGORIES",
    "Assumed",
    "CardVerdict",
    "Check",
    "Held",
    "KeptApart",
    "LineShare",
    "Prediction",
    "RankUse",
    "SharedCard",
    "Stopped",
    "Written",
    "check",
    "predict",
]
