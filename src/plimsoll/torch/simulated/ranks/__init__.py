"""The processes of a job and their communication: torch.distributed on simulated GPUs."""
