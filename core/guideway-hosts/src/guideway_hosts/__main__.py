"""Entry point of the fork server of hosts: ``python -m guideway_hosts DESCRIPTORS PID``.

It serves process PID over the first socket; over a second one, if given, other processes ask for their own fork server.
PID is not read: it only helps people who read a list of processes.
"""

from __future__ import annotations

import sys

from guideway_hosts.program import main

if __name__ == "__main__":
    main(*map(int, sys.argv[1].split(",")))
