"""Integrates plimsoll into other tools: trainers, trackers, notebooks, tests and pull requests.

Most files serve one such tool each. No other file imports that tool's library.
docs/integrations.md shows how to use the files. The files for trainers and trackers use
`memory_watch`. `top` watches every GPU and process, on this and other machines. `diagnosis` says
what works on this machine; `measuring` measures its cards.
"""
