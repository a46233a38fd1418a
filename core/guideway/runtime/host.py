"""``python -m guideway.runtime.host DESCRIPTOR PID``: the nursery of the grammar hosts of process PID, over a socket.

All of them show this command; the number is for who reads a list of processes.
"""

from __future__ import annotations

import sys

from guideway.runtime.grammar_hosts.serving import main

if __name__ == "__main__":
    main(int(sys.argv[1]))
