"""Recordings of GPU memory: files are read, checked and kept as columns.

A file is a snapshot as `torch.cuda.memory._dump_snapshot` writes it (`.pickle`, `.pickle.gz`), a
stream that plimsoll records (`.plim`), or a columnar trace (`.parquet`). Begin with `recording`;
`reading` reads every format, `checks` refuses impossible values. `label` is the use of an address
that PyTorch knew, `origin` the pass in which memory was requested. `analysis` finds the live
memory.
"""
