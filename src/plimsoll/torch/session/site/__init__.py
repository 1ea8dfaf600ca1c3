"""A folder that goes first on the path of processes that are to have simulated GPUs."""
