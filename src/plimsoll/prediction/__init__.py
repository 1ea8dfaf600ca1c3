"""What a CUDA script will need, found out where there is no GPU."""

from plimsoll.analysis import LineShare
from plimsoll.prediction.fit import Fit, Trial, fit
from plimsoll.prediction.predict import predict
from plimsoll.prediction.result import CATEGORIES, Assumed, CardVerdict, Prediction

__all__ = [
    "CATEGORIES",
    "Assumed",
    "CardVerdict",
    "Fit",
    "LineShare",
    "Prediction",
    "Trial",
    "fit",
    "predict",
]
