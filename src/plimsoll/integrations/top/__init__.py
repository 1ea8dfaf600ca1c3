"""The screen of `plimsoll top`: every GPU and process, and the parts of their memory.

`model` joins the driver's figures with the counters of processes. `text` lays out a line for each
GPU and a table of processes; `app` is the screen. `details` describes the selected row;
`process_acts` shows the selected process's environment, writes its snapshot, or ends it. `hosts`
asks other machines, either through ssh (`ssh_host`, with the limits of `bounded`) or by HTTP
(`metrics_host`, with `http_get`). `remote_json` validates the answers, and `host_list` expands
lists of names.
"""
