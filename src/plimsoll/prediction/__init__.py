"""Predicts a CUDA script's memory without a GPU.

Begin with `predict`. The script runs on simulated GPUs in a process of its own (`child`), or as a
job of several processes (`child.ranks`). `child.verdict` decides whether each card has room for its
processes. `distinct` decides which ranks of a large job have to run. The report is plain data
(`parts`). It has the peak and its categories, the peak's range if values are unknown (`ranges`),
the growth of each step (`step_growth`), the host's memory, and a row for each GPU (`gpu_rows`).
`plot` and `predicted_page` make pictures of it. `recording_check` compares a prediction with a
recording. `survey` lists possible changes of the script.

The packages: `trials` runs programs and deletes what they write, `recipes` has scripts for a
model's name, `fitting` finds changes that make a script fit a card, `sweeps` makes many predictions
and compares them, and `serving` searches the options of serving engines.
"""
