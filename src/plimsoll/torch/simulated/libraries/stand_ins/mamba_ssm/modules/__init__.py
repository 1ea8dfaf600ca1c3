"""The layers of mamba-ssm that the stand-in has."""
