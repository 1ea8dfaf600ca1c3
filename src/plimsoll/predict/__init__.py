"""What a CUDA script will need, found out where there is no GPU."""

from plimsoll.analysis import LineShare
from plimsoll.predict.fit import Fit, Trial, fit
from plimsoll.predict.predict import predict
from plimsoll.predict.result import CATEGORIES, Assumed, CardVerdict, Prediction

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
