"""``python -m guideway.runtime.host DESCRIPTORS PID``: the nursery of the grammar hosts of process PID, over a socket.
Over a second one, where there is one, other processes ask for a nursery of their own.

All of them show this command; the number is for who reads a list of processes.
"""

from __future__ import annotations

import sys

from guideway.runtime.grammar_hosts.serving import main

if __name__ == "__main__":
    main(*map(int, sys.argv[1].split(",")))
