"""Write what the installed lm-format-enforcer enforces into the plugin: ``python -m guideway_lmfe.probe``."""

from __future__ import annotations

from guideway_lmfe.strategy import SUPPORT

if __name__ == "__main__":
    SUPPORT.write()
