"""Integrates plimsoll into other tools: trainers, trackers, notebooks, tests and pull requests.

Most files serve one library each. A library is imported only by its own file. docs/integrations.md
shows how to use the files. The files for trainers and trackers use `memory_watch`. `top` watches
every GPU and process, on this and other machines. `diagnosis` says what works on this machine;
`measuring` measures its cards.
"""
