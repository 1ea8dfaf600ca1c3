"""plimsoll in other tools: trainers, trackers, notebooks, tests and pull requests.

Each file is for one library, which it imports itself; docs/integrations.md shows them. Trainers and
trackers get a `memory_watch`. `top` watches every GPU and process, on this and other machines.
`diagnosis` says what works on this machine; `measuring` measures its cards.
"""
