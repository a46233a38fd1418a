"""A digest of a component's files, so that two processes, or two days, can tell whether they run the same code."""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from guideway.errors import PluginError
from guideway.plugins.index import PluginRecord, distribution_of

__all__ = ["file_digest"]


def file_digest(record: PluginRecord) -> str:
    """``sha256:<hex>`` over the names and contents of the files behind `record`.

    For an ordinary install these are the files of the whole distribution as its RECORD lists them, without what an
    installer adds on each machine (compiled files, scripts, its own notes); for an editable install, or one without
    a RECORD, the files of the top-level module the entry point names. Raises `PluginError` if there are none.
    """
    dist = distribution_of(record)
    table = None if record.editable else dist.read_text("RECORD")
    files = list(_tree(record) if table is None else _recorded(dist, table))
    if not files:
        raise PluginError(f"the files of {record} cannot be found: reinstall {record.distribution}", plugin=record.id)
    digest = hashlib.sha256()
    for name, path in sorted(files, key=lambda item: item[0]):
        digest.update(f"{name}\0{_content(path)}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def _recorded(dist: Any, table: str) -> Iterator[tuple[str, Any]]:
    for name, recorded_hash, *_ in csv.reader(table.splitlines()):
        top, _, rest = name.partition("/")
        elsewhere = name.startswith("../") or Path(name).is_absolute()
        note = top.endswith(".dist-info") and rest not in ("METADATA", "entry_points.txt")
        if recorded_hash and not elsewhere and not note:
            yield name, dist.locate_file(name)


def _tree(record: PluginRecord) -> Iterator[tuple[str, Path]]:
    top = record.value.partition(":")[0].strip().partition(".")[0]
    try:
        spec = find_spec(top)  # a top-level name: nothing is imported to find it
    except ValueError:  # a module that was put together by hand
        spec = None
    if spec is None:
        return
    if spec.submodule_search_locations is None:
        if spec.origin is not None:
            yield Path(spec.origin).name, Path(spec.origin)
        return
    for root in map(Path, spec.submodule_search_locations):
        for folder, folders, names in os.walk(root):
            folders[:] = [f for f in folders if f != "__pycache__" and not f.startswith(".")]
            for name in names:
                path = Path(folder, name)
                if path.suffix != ".pyc" and not name.startswith("."):
                    yield f"{top}/{path.relative_to(root).as_posix()}", path


def _content(path: Any) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "missing"  # listed but gone: a digest of its own
