"""Write what the installed lm-format-enforcer enforces into the plugin: ``python -m guideway_lmfe.probe``."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

from guideway_lmfe.support import committed, measure


def main() -> None:
    """Rewrite this version's part of ``support.json``; other versions' parts stay."""
    path = Path(__file__).with_name("support.json")
    tables = committed() if path.exists() else {}
    tables[version("lm-format-enforcer")] = measure()
    path.write_text(json.dumps(dict(sorted(tables.items())), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
