"""Write the table of keywords that the installed xgrammar enforces: ``python -m guideway_xgrammar.probe``."""

from __future__ import annotations

from guideway_xgrammar.strategy import SUPPORT

if __name__ == "__main__":
    SUPPORT.write()
