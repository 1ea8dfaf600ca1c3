"""The folder that comes first on the Python path of processes with simulated GPUs."""
