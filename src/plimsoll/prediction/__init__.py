"""A CUDA script's memory, predicted where there is no GPU.

Begin with `predict`. The script runs on simulated GPUs in a process of its own (`child`), or as a
job of several (`child.ranks`); `child.verdict` says whether all processes fit their card, and
`distinct` which ranks of a large job have to run. The report is plain data (`parts`): the peak and
its categories, a range where values are unknown (`ranges`), the growth of each step
(`step_growth`), the host's memory, a row for each GPU (`gpu_rows`), and pictures (`plot`,
`predicted_page`). `recording_check` compares it with a recording, `survey` says what the script
could change.

The packages are runs that leave nothing behind (`trials`), scripts for a model's name (`recipes`),
how a script fits a card (`fitting`), and many predictions beside each other (`sweeps`).
"""
