"""The call stacks of a program's own snapshot end in the program, after a frame of plimsoll's."""

import torch

torch.cuda.memory._record_memory_history()
x = torch.ones(1 << 20, device="cuda")  # line 6
(trace,) = torch.cuda.memory._snapshot()["device_traces"]
origin, *frames = trace[-1]["frames"]
assert origin["filename"] == "<plimsoll>", origin  # the pass that made it
assert [(frame["name"], frame["line"]) for frame in frames] == [("<module>", 6)], frames
assert frames[0]["filename"] == __file__
