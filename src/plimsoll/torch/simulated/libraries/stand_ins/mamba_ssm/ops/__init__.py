"""The operations of mamba-ssm that the stand-in has."""
