"""What a CUDA script will need, found out where there is no GPU."""

from plimsoll.predict.fit import Fit, fit
from plimsoll.predict.predict import predict
from plimsoll.predict.result import CATEGORIES, Assumed, CardVerdict, LineShare, Prediction

__all__ = [
    "CATEGORIES",
    "Assumed",
    "CardVerdict",
    "Fit",
    "LineShare",
    "Prediction",
    "fit",
    "predict",
]
