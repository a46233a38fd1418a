"""Write the table of keywords that the installed outlines-core enforces: ``python -m guideway_outlines.probe``."""

from __future__ import annotations

from guideway_outlines.strategy import SUPPORT

if __name__ == "__main__":
    SUPPORT.write()
