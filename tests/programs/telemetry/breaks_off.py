"""Stops in the middle of sending a snapshot.

python breaks_off.py FOLDER (die|hang)
"""

import os
import signal
import socket
import sys
from pathlib import Path

from plimsoll.base.telemetry.folder import socket_path

server = socket.socket(socket.AF_UNIX)
server.bind(str(socket_path(Path(sys.argv[1]), os.getpid())))
server.listen()
print("ready", flush=True)
connection, _ = server.accept()
connection.recv(100)
connection.sendall(b'{"size": 1000}\nsome')
if sys.argv[2] == "die":
    os.kill(os.getpid(), signal.SIGKILL)
signal.pause()
