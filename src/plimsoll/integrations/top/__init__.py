"""Every GPU and process, and what holds their memory: the screen of `plimsoll top`.

`model` joins the driver's figures with the counters of processes. `text` prints a line for each GPU
and a table, `app` is the screen, `details` are shown on demand, and `process_acts` is what keys do
to a process. `hosts` asks other machines, whose answers `remote_json` checks.
"""
