"""The processes of a job, and what they tell each other: torch.distributed on simulated GPUs."""
