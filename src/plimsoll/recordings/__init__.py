"""Reads recordings of GPU memory, checks them, and keeps them as columns.

A file is a snapshot as `torch.cuda.memory._dump_snapshot` writes it (`.pickle`, `.pickle.gz`), a
stream that plimsoll records (`.plim`), or a columnar trace (`.parquet`). Begin with `recording`.
`reading` reads every format. `checks` refuses impossible values. A `label` says what PyTorch used
an address for. An `origin` says in which pass, forward or backward, memory was requested.
`analysis` finds when each block of memory was live and what it was used for. `causes`
explains why the program takes its memory.
"""
