"""The page of `plimsoll view`.

Python prepares columns: begin with `device_view`. The files in `web` draw them in the browser.

`page_file` writes a recording, or two side by side, as one self-contained HTML page. `server`
serves the same page; on request it also sends the blocks that the page leaves out. `exports` writes
the formats of other tools.
"""
