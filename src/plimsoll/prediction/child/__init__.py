"""The process in which a script runs on simulated GPUs."""
