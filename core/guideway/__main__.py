"""The program ``guideway``, also run with ``python -m guideway``."""

from __future__ import annotations

import sys
from signal import SIG_DFL, SIGINT, default_int_handler, getsignal, signal

__all__ = ["main"]


def main() -> int:
    """Import and run the program. Until it is imported, Ctrl-C ends the process at once and without a traceback."""
    is_ours = getsignal(SIGINT) is default_int_handler
    if is_ours:
        signal(SIGINT, SIG_DFL)
    from guideway.command_line import program

    if is_ours:
        signal(SIGINT, default_int_handler)
    return program.main()


if __name__ == "__main__":
    sys.exit(main())
