"""The counters that a running program publishes, snapshots on request, and metrics.

Begin with `publisher`: a process whose memory plimsoll serves writes its counters to a small file
and answers requests for a snapshot. Only the process's own user can read both. `metrics` gives
Prometheus the same counters; `prometheus/` holds rules and a dashboard. `job` finds the process's
rank and job. `exit_summaries` reports at a process's end what it used.
"""
