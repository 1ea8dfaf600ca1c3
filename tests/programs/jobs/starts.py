"""Starts a process that prints its GPU, or its modules if the argument is "plain"."""

import os
import subprocess
import sys
from multiprocessing import get_context
from typing import Any

SEE = "import torch; print(torch.cuda.get_device_name(), torch.ones(2, device='cuda').device)"
PLAIN = (
    "import sys; print(sorted(m for m in sys.modules if m.split('.')[0] in ('plimsoll', 'torch')));"
    "print(getattr(sys, 'noted', None), 'sitecustomize' in sys.modules)"
)


def see() -> None:
    """Prints the GPU that this process uses by default."""
    exec(SEE)


def main() -> None:
    """Starts one process in the way that the argument names."""
    kind = sys.argv[1]
    if kind == "subprocess":
        subprocess.run([sys.executable, "-c", SEE], check=True)
    elif kind == "shell":
        subprocess.run(f'cd / && "{sys.executable}" -c "{SEE}"', shell=True, check=True)
    elif kind == "plain":
        subprocess.run([sys.executable, "-c", PLAIN], check=True)
    elif kind == "os.fork":
        if os.fork() == 0:
            see()
            sys.stdout.flush()
            os._exit(0)
        os.wait()
    else:
        context: Any = get_context(kind)
        if kind == "forkserver":
            context.set_forkserver_preload(["torch"])
        process = context.Process(target=see)
        process.start()
        process.join()


if __name__ == "__main__":
    main()
