"""Reads recordings of GPU memory, checks them, and keeps them as columns.

A file is a snapshot as `torch.cuda.memory._dump_snapshot` writes it (`.pickle`, `.pickle.gz`), a
stream that plimsoll records (`.plim`), or a columnar trace (`.parquet`). Begin with `recording`.
`reading` reads every format. `checks` refuses impossible values. A `label` is the use of an address
as PyTorch knew it; an `origin` is the pass in which memory was requested. `analysis` finds which
memory was live and for what; `causes` finds why.
"""
