"""Write what the installed outlines-core enforces into the plugin: ``python -m guideway_outlines.probe``."""

from __future__ import annotations

from guideway_outlines.strategy import SUPPORT

if __name__ == "__main__":
    SUPPORT.write()
