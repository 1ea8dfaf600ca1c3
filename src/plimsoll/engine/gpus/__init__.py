"""Real GPUs: memory, speed and limits, each number with its source in `profiles.toml`."""
