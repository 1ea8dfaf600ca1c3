"""plimsoll where people already are: trainers, trackers, notebooks, tests and pull requests.

Each file is one library's, which it imports itself; docs/integrations.md shows them.
"""
