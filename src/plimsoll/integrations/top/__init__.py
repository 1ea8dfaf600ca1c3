"""The screen of `plimsoll top`: every GPU and process, and the parts of their memory.

`model` joins the driver's figures with the counters of processes. `text` prints a line for each GPU
and a table, `app` is the screen, `details` are shown on demand, and `process_acts` are the actions
of keys on a process. `hosts` asks other machines: `ssh_host` through a program with the limits of
`bounded`, `metrics_host` through `http_get`. `remote_json` validates their answers.
"""
