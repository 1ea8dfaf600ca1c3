"""What is known of real GPUs: memory, speed and limits, and where each number comes from."""

from plimsoll.gpus.profiles import GpuProfile, gpu_profile, gpu_profiles
from plimsoll.gpus.recorded_card import RecordedCard, card_entry, named_card, recorded_card

__all__ = [
    "GpuProfile",
    "RecordedCard",
    "card_entry",
    "gpu_profile",
    "gpu_profiles",
    "named_card",
    "recorded_card",
]
