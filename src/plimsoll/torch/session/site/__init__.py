"""A folder that comes first on the path of processes with simulated GPUs."""
