"""What a CUDA script will need, found out where there is no GPU."""

from plimsoll.analysis import LineShare
from plimsoll.prediction.fit import fit
from plimsoll.prediction.parts import CATEGORIES, Assumed, CardVerdict, Trial, Written
from plimsoll.prediction.predict import predict
from plimsoll.prediction.results import Fit, Prediction

__all__ = [
    "CATEGORIES",
    "Assumed",
    "CardVerdict",
    "Fit",
    "LineShare",
    "Prediction",
    "Trial",
    "Written",
    "fit",
    "predict",
]
