"""Asks the process PID for its memory snapshot, and prints the snapshot.

python asks_for_a_snapshot.py PID
"""

import sys

from plimsoll.base.telemetry.requests import request_snapshot

sys.stdout.buffer.write(request_snapshot(int(sys.argv[1])))
