"""Installing a distribution for one test: metadata in a folder on ``sys.path``, code anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(folder: Path, name: str, entries: Mapping[str, str], *, group: str = "guideway.v1") -> None:
    """Write the metadata of distribution `name` with these entry points of a group; put `folder` on the path
    yourself."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    lines = "".join(f"{entry} = {value}\n" for entry, value in entries.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{lines}", encoding="utf-8")
    # the record lists only these, because other tests may write code to its folder at the same time
    names = [f"{info.name}/{name}" for name in ("METADATA", "entry_points.txt")]
    (info / "RECORD").write_text("".join(f"{name},sha256=,\n" for name in names), encoding="utf-8")
