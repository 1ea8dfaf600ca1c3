"""Trains, writes checkpoints, a log and metrics, and reports each step to an experiment tracker.

Arguments: the port of the tracker's server, and how many GiB to request on the GPU at the end.
"""

import csv
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch


def track(step: int, port: int) -> None:
    """Sends the step to an experiment tracker's server, unless WANDB_MODE is "disabled"."""
    if os.environ.get("WANDB_MODE") != "disabled":
        with socket.create_connection(("127.0.0.1", port)) as server:
            server.sendall(b"%d\n" % step)


def main() -> None:
    """Trains three steps."""
    port, gib = int(sys.argv[1]), int(sys.argv[2])
    assert not Path("finished").exists(), "an earlier trial left it"
    logging.basicConfig(filename="train.log", level=logging.INFO)
    folder = Path("checkpoints")
    folder.mkdir(exist_ok=True)
    last = folder / "last.pt"
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters())
    if last.exists():
        last.replace(folder / "before.pt")
    for step in range(3):
        model(torch.ones(4, 64, device="cuda")).sum().backward()
        optimizer.step()
        logging.info("step %d", step)
        torch.save({"model": model.state_dict(), "step": step}, folder / "new.pt")
        (folder / "new.pt").replace(last)
        with Path("metrics.csv").open("a", newline="") as file:
            csv.writer(file).writerow([step, 1.0])
        track(step, port)
    assert torch.load(last)["step"] == 2
    np.save("weights.npy", model.weight.detach().cpu().numpy())
    subprocess.run("tar cf all.tar checkpoints && rm -r runs", shell=True, check=True)
    Path("finished").touch()
    torch.empty(gib << 30, dtype=torch.uint8, device="cuda")


main()
