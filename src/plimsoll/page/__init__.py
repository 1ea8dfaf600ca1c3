"""The page of `plimsoll view`.

Python prepares columns: begin with `device_view`. The files of `web` draw them.

`page_file` writes a recording, or two side by side, as one self-contained HTML page. `server` shows
the same page with details of any size. `exports` writes the formats of other tools.
"""
