"""What a CUDA script will need, found out where there is no GPU."""

from plimsoll.analysis import LineShare
from plimsoll.prediction.check_parts import Held
from plimsoll.prediction.fit import fit
from plimsoll.prediction.parts import CATEGORIES, Assumed, CardVerdict, Stopped, Trial, Written
from plimsoll.prediction.predict import predict
from plimsoll.prediction.rank_use import RankUse, SharedCard
from plimsoll.prediction.recording_check import Check, check
from plimsoll.prediction.results import Fit, Prediction

__all__ = [
    "CATEGORIES",
    "Assumed",
    "CardVerdict",
    "Check",
    "Fit",
    "Held",
    "LineShare",
    "Prediction",
    "RankUse",
    "SharedCard",
    "Stopped",
    "Trial",
    "Written",
    "check",
    "fit",
    "predict",
]
