"""The counters that a running program publishes, snapshots on request, and metrics.

Begin with `publisher`. A process that allocates GPU memory through plimsoll writes its counters to
a small file, and answers requests for a snapshot. Only the process's own user can read the file and
the snapshots. `metrics` gives Prometheus the same counters; `prometheus/` holds rules and a
dashboard. `job` finds the process's rank and job. `exit_summaries` reports at a process's end how
much memory it used, and `peak_resets` remembers the peaks that the program resets.
"""
