"""The Triton operations of mamba-ssm that the stand-in has."""
