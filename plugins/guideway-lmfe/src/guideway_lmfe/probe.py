"""Write the table of keywords that the installed lm-format-enforcer enforces: ``python -m guideway_lmfe.probe``."""

from __future__ import annotations

from guideway_lmfe.strategy import SUPPORT

if __name__ == "__main__":
    SUPPORT.write()
