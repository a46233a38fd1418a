"""Write the table of keywords that the installed llguidance enforces: ``python -m guideway_llguidance.probe``."""

from __future__ import annotations

from guideway_llguidance.strategy import SUPPORT

if __name__ == "__main__":
    SUPPORT.write()
