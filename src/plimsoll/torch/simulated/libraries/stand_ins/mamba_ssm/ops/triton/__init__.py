"""mamba-ssm's operations that are written in Triton: those that the stand-in has."""
