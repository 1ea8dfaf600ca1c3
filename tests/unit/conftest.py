"""Defines Hypothesis profiles.

`CI=1` makes Hypothesis try the same examples in every run. `HYPOTHESIS_PROFILE=long` makes it try
2000 examples for each test instead of 40.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("default", max_examples=40, stateful_step_count=40, deadline=None)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.register_profile("long", settings.get_profile("default"), max_examples=2000)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default")
)
