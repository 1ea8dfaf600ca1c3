"""mamba-ssm's layers: those that the stand-in has."""
