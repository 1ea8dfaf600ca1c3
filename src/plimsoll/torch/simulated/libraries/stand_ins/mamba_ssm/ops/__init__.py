"""mamba-ssm's operations: those that the stand-in has."""
