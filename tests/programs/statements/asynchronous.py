"""Shows that operations are queued, and that synchronizing, printing and host copies wait."""

import time

import torch


def submit() -> torch.cuda.Event:
    """Queues work that takes the GPU a while. Returns an event that is recorded after the work."""
    global y
    for _ in range(200):
        y = x @ x
    done = torch.cuda.Event(enable_timing=True)
    done.record()
    return done


x = torch.empty(8192, 8192, device="cuda")
y = x
submit().synchronize()

begin = torch.cuda.Event(enable_timing=True)
begin.record()
start = time.perf_counter()
end = submit()
submitting = time.perf_counter() - start
print("submitted, done:", end.query())
torch.cuda.synchronize()
print("synchronized, done:", end.query())
computing = begin.elapsed_time(end) / 1000
print("computing goes on after submitting:", computing > submitting)

end = submit()
y[:1].cpu()
print("copied, done:", end.query())
end = submit()
str(y[0, :4])
print("printed, done:", end.query())
