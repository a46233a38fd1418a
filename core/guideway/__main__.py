"""Run the program ``guideway`` with ``python -m guideway``."""

from __future__ import annotations

import sys

from guideway.command_line.program import main

if __name__ == "__main__":
    sys.exit(main())
