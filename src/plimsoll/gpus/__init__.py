"""What is known of real GPUs: memory, speed and limits, and where each number comes from."""

from plimsoll.gpus.profiles import GpuProfile, gpu_profile, gpu_profiles

__all__ = ["GpuProfile", "gpu_profile", "gpu_profiles"]
