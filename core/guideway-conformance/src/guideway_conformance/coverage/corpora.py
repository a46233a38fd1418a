"""Read corpora of schemas with valid and invalid instances."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from guideway.errors import InvalidConfiguration
from guideway.files import read_file, reason

__all__ = ["Case", "read_cases"]

LARGEST = 1 << 30
"""Bytes of a corpus in one file."""
DRAFTS = {
    **{f"draft{number}": f"http://json-schema.org/draft-0{number}/schema#" for number in (3, 4, 6, 7)},
    **{f"draft{year}": f"https://json-schema.org/draft/{year}/schema" for year in ("2019-09", "2020-12")},
}
"""Drafts by the names of the official suite's folders; its schemas of old drafts do not declare them."""


@dataclass(frozen=True, slots=True)
class Case:
    """A schema, a parsed JSON value, with its instances."""

    name: str
    """Different for each case of a run."""
    dataset: str
    schema: Any
    valid: tuple[Any, ...]
    invalid: tuple[Any, ...]


def read_cases(*corpora: str | Path) -> list[Case]:
    """Read files of JSON lines, with ``name``, ``schema``, ``valid`` and ``invalid`` in each as in JSONSchemaBench's
    samples; and all ``.json`` files in folders, which have a schema with ``tests``, or a list of these as in the
    official suite. Raises `InvalidConfiguration` with the file."""
    found: dict[str, Case] = {}
    for corpus in map(Path, corpora):
        for case in _read_folder(corpus) if corpus.is_dir() else _read_lines(corpus):
            name, number = case.name, 1
            while name in found:
                number += 1
                name = f"{case.name} #{number}"
            found[name] = replace(case, name=name, schema=_declared(case.schema, case.dataset))
    return list(found.values())


def _read_lines(file: Path) -> Iterator[Case]:
    for number, line in enumerate(_read(file).splitlines(), 1):
        row = _parse(line, f"{file}, line {number}")
        _require(row, f"{file}, line {number}", "name", "schema", "valid", "invalid")
        yield Case(
            row["name"], row.get("dataset", file.stem), row["schema"], tuple(row["valid"]), tuple(row["invalid"])
        )


def _read_folder(folder: Path) -> Iterator[Case]:
    for file in sorted(folder.rglob("*.json")):
        name = str(file.relative_to(folder).with_suffix(""))
        data = _parse(_read(file), str(file))
        dataset = file.parent.name if file.parent != folder else folder.name
        if not isinstance(data, list):
            yield _from_tests(data, str(file), name, dataset)
            continue
        for group in data:
            _require(group, str(file), "description")
            yield _from_tests(group, str(file), f"{name}::{group['description']}", dataset)


def _from_tests(data: Any, place: str, name: str, dataset: str) -> Case:
    _require(data, place, "schema", "tests")
    valid, invalid = (
        tuple(test["data"] for test in data["tests"] if bool(test["valid"]) is wanted) for wanted in (True, False)
    )
    return Case(name, dataset, data["schema"], valid, invalid)


def _declared(schema: Any, dataset: str) -> Any:
    """Return a schema with ``$schema``, if its data set has a draft and it has none."""
    if dataset not in DRAFTS or not isinstance(schema, Mapping) or "$schema" in schema:
        return schema
    return {"$schema": DRAFTS[dataset], **schema}


def _read(file: Path) -> str:
    try:
        return read_file(file, LARGEST).decode("utf-8")
    except (OSError, ValueError) as error:
        raise InvalidConfiguration(f"{str(file)!r} cannot be read: {reason(error)}", field="corpus") from error


def _parse(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidConfiguration(f"{place}: not JSON: {error}", field="corpus") from error


def _require(row: Any, place: str, *keys: str) -> None:
    missing = [key for key in keys if not isinstance(row, Mapping) or key not in row]
    if missing:
        raise InvalidConfiguration(f"{place}: {', '.join(map(repr, missing))} missing", field="corpus")
