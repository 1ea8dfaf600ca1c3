"""Replaces ssh: runs the command in a local shell, with the runtime folder $HOSTS/HOST.

Each call appends its arguments to the file $ARGUMENTS as a line of JSON. If there is a Python file
$HOSTS/answers/HOST, the script runs this file in place of the command.
"""

import json
import os
import sys
from pathlib import Path

options, (host, command) = sys.argv[1 : sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1 :]
with Path(os.environ["ARGUMENTS"]).open("a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\n")
hosts = Path(os.environ["HOSTS"])
answer = hosts / "answers" / host
if answer.exists():
    os.execv(sys.executable, [sys.executable, str(answer)])
if not (hosts / host).is_dir():
    print(f"ssh: Could not resolve hostname {host}: Name or service not known", file=sys.stderr)
    sys.exit(255)
os.execve("/bin/sh", ["sh", "-c", command], {**os.environ, "XDG_RUNTIME_DIR": str(hosts / host)})
