"""The counters that a running program publishes, snapshots on request, and metrics.

A process whose memory plimsoll serves writes its counters to a small file and answers requests for
a snapshot, both for its own user only: begin with `publisher`. `metrics` gives Prometheus the same
counters; `prometheus/` holds rules and a dashboard. `job` finds the process's place in its job.
"""
