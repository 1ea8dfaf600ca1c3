"""Libraries that need something on simulated GPUs: each has a file."""
