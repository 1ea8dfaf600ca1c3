"""Writes the snapshot of a process to its standard output.

python asks_for_a_snapshot.py PID
"""

import sys

from plimsoll.base.telemetry.requests import request_snapshot

sys.stdout.buffer.write(request_snapshot(int(sys.argv[1])))
