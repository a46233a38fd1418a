"""``python -m guideway.runtime.host DESCRIPTOR``: the nursery of grammar hosts, over a socket it was started with."""

from __future__ import annotations

import sys

from guideway.runtime.grammar_hosts.serving import main

if __name__ == "__main__":
    main(int(sys.argv[1]))
