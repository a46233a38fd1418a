"""Lines of JSON written by `guideway generate --record`, from which each answer can be inspected later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from guideway.api.types import Constraint, JsonSchema, Whitespace
from guideway.errors import InvalidRequest, did_you_mean
from guideway.runtime.constraints.guard.kinds import kind_of

from guideway_engine.command_line.reading import read_lines
from guideway_engine.config_sources import Key
from guideway_engine.entries import CONSTRAINTS, constraint_of_line

__all__ = ["Record", "read_record", "written"]


@dataclass(frozen=True, slots=True)
class Record:
    """One output of a line written by `guideway generate`, without its reasoning."""

    where: str
    text: str
    token_ids: tuple[int, ...] | None
    """None if the line was written without ``--record``."""
    strategy: str | None
    constraint: Constraint | None
    pressure: tuple[float, ...]
    """`guideway.Records.pressure` of `token_ids`; empty if the line has no ``records``."""
    settings: Mapping[Key, Any]
    """Settings in the line: the model, and the white space of JSON."""


def written(model: str, constraint: Constraint | None, whitespace: Whitespace) -> dict[str, Any]:
    """Return the fields that a record adds to a line; `whitespace` is used for constraints that do not set it. Raises
    `InvalidGrammar` for a schema that is not JSON."""
    said = {} if (form := kind_of(constraint).form) is None else {form.key: form.write(constraint)}
    if isinstance(constraint, JsonSchema):
        said["whitespace"] = constraint.whitespace or whitespace
    return {"model": model, "constraint": said or None}


def read_record(path: str, job_id: str | None, output: int) -> Record:
    """Return the record of the prompt `job_id` in the file at `path`; the id may be None if there is one line. `output`
    is the index of one of its outputs. Raises `InvalidRequest` with advice."""
    where, entry = _find_entry(path, job_id)
    said = _output(where, entry, output)
    if said.get("error"):
        why = said["error"].get("message", "") if isinstance(said["error"], dict) else said["error"]
        raise InvalidRequest(f"{where} has no answer, because it was {said['finish_reason']}: {why}", field="record")
    try:
        start, reasoning = int(said.get("answer_start", 0)), int(said.get("num_reasoning_tokens", 0))
        ids = said.get("token_ids")
        pressure = tuple(float(value) for value in (said.get("records") or {"pressure": ()})["pressure"])
        if pressure and len(pressure) != len(ids or ()):
            raise ValueError(f"it has the pressure of {len(pressure)} tokens, and {len(ids or ())} token ids")
        constraint, whitespace = _constraint(where, entry.get("constraint"))
        settings = {("model",): entry.get("model"), ("whitespace",): whitespace}
        return Record(
            where=where,
            text=said["text"][start:],
            token_ids=None if ids is None else tuple(int(i) for i in ids[reasoning:]),
            strategy=said.get("strategy"),
            constraint=constraint,
            pressure=pressure[reasoning:],
            settings={key: value for key, value in settings.items() if value is not None},
        )
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InvalidRequest(f"{where} is not a line of guideway generate: {error}", field="record") from error


def _find_entry(path: str, job_id: str | None) -> tuple[str, dict[str, Any]]:
    ids: list[str] = []
    where, chosen = "", None
    for number, line in enumerate(read_lines(path, "record"), start=1):
        if line.strip():
            entry = _parse(path, number, line)
            ids.append(str(entry.get("id")))
            if chosen is None and job_id in (None, ids[-1]):
                where, chosen = f"{path}, line {number}", entry
    if job_id is None:
        if chosen is not None and len(ids) == 1:
            return where, chosen
        several = f"{len(ids)} records; choose one with --id, such as --id {ids[0]}" if ids else "no record"
        raise InvalidRequest(f"{path} holds {several}", field="record")
    if chosen is not None and ids.count(job_id) == 1:
        return where, chosen
    hint = did_you_mean(job_id, ids)
    count = f"{ids.count(job_id)} records have" if job_id in ids else "no record has"
    raise InvalidRequest(f"{path}: {count} the id {job_id!r}{hint and f'; {hint}'}", field="record")


def _output(where: str, entry: dict[str, Any], index: int) -> Mapping[str, Any]:
    outputs = entry.get("outputs", [entry | {"index": 0}])
    for output in outputs:
        if output.get("index") == index:
            chosen: dict[str, Any] = entry | output
            return chosen
    indices = ", ".join(str(output.get("index")) for output in outputs)
    raise InvalidRequest(f"{where} has no output {index}; choose one with --output-index: {indices}", field="record")


def _constraint(where: str, said: object) -> tuple[Constraint | None, object]:
    """Return the constraint, and the white space of its JSON."""
    if said is None:
        return None, None
    keys = [key for key in CONSTRAINTS if key in said] if isinstance(said, dict) else []
    if not isinstance(said, dict) or len(keys) != 1:
        raise InvalidRequest(
            f"the constraint of {where} must be an object with one of {', '.join(CONSTRAINTS)}", field="record"
        )
    return constraint_of_line(f"the constraint of {where}", keys[0], said[keys[0]]), said.get("whitespace")


def _parse(path: str, number: int, line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path}, line {number} is not JSON: {error}", field="record") from error
    if not isinstance(entry, dict) or not isinstance(entry.get("text"), str) or "finish_reason" not in entry:
        raise InvalidRequest(
            f"{path}, line {number} is not a record: a record is a line that guideway generate wrote, with 'text' and "
            "'finish_reason'; for a plain text use --text or --text-file",
            field="record",
        )
    return entry
