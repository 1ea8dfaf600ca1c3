"""Integrates plimsoll into other tools: trainers, trackers, notebooks, tests and pull requests.

Most files are for one library each, which the file imports itself; docs/integrations.md shows how
to use them. Trainers and trackers get a `memory_watch`. `top` watches every GPU and process, on
this and other machines. `diagnosis` says what works on this machine; `measuring` measures its
cards.
"""
