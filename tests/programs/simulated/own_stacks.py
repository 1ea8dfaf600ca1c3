"""Checks a stack in a program's own snapshot: plimsoll's frame is first, the program's follow."""

import torch

torch.cuda.memory._record_memory_history()
x = torch.ones(1 << 20, device="cuda")  # line 6 of this file
(trace,) = torch.cuda.memory._snapshot()["device_traces"]
origin, *frames = trace[-1]["frames"]
assert origin["filename"] == "<plimsoll>", origin  # the origin, a frame that plimsoll adds
assert [(frame["name"], frame["line"]) for frame in frames] == [("<module>", 6)], frames
assert frames[0]["filename"] == __file__
