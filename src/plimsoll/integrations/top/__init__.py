"""Every GPU and process, and what holds their memory: the screen of `plimsoll top`.

`model` joins the driver's figures with the counters of processes. `text` prints a line for each GPU
and a table, `app` is the screen, `details` are shown on demand, and `process_acts` is what keys do
to a process. `hosts` asks other machines: `ssh_host` by a program that `bounded` ends,
`metrics_host` by `http_get`. `remote_json` checks what they answer.
"""
