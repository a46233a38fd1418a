"""Formatting of an inspection as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from guideway_engine.inspection.choosing import StrategyReport
from guideway_engine.inspection.inspecting import Allowed, Inspection, Refusal, Step
from guideway_engine.inspection.words import begins

__all__ = ["as_json"]


def as_json(inspection: Inspection, model: str) -> dict[str, Any]:
    """Return the object that ``guideway inspect --json`` prints. Times are microseconds; bytes that are not text are
    hexadecimal."""
    shown = _Shown(inspection)
    text = inspection.text
    return {
        "passes": inspection.passes,
        "model": model,
        "vocabulary_size": len(inspection.vocabulary),
        "constraint": {"kind": inspection.constraint.kind, "source": inspection.constraint.source()},
        "strategy": inspection.strategy,
        "strategies": [_report(report) for report in inspection.strategies],
        "unenforced": [asdict(each) for each in inspection.unenforced],
        "compile_us": _micro(inspection.compile_seconds),
        "matcher_us": _micro(inspection.matcher_seconds),
        "grammar_bytes": inspection.nbytes,
        "text": None if text is None else text.decode(errors="replace"),
        "token_ids": list(inspection.token_ids),
        "num_forced": inspection.num_forced,
        "forced_runs": [run._asdict() for run in inspection.forced_runs],
        "steps": [shown.step(step) for step in inspection.steps],
        "pressure": list(inspection.pressure),
        "refusal": None if inspection.refusal is None else shown.refusal(inspection.refusal),
        "in_another_order": inspection.in_another_order,
        "jsonschema": {"valid": inspection.valid, "faults": [fault._asdict() for fault in inspection.faults]},
    }


def _report(report: StrategyReport) -> dict[str, Any]:
    return {**asdict(report), "losses": [loss._asdict() for loss in report.losses]}


class _Shown:
    def __init__(self, inspection: Inspection) -> None:
        self._vocabulary = inspection.vocabulary

    def step(self, step: Step) -> dict[str, Any]:
        return {
            "token": None if step.token_id is None else self._token(step.token_id),
            "offset": step.offset,
            "choice": step.choice,
            "accepted": step.accepted,
            "allowed": self._describe_allowed(step.allowed),
            "mask_us": _micro(step.fill_seconds),
            "accept_us": None if step.accept_seconds is None else _micro(step.accept_seconds),
        }

    def refusal(self, refusal: Refusal) -> dict[str, Any]:
        return {
            "step": refusal.step,
            **asdict(refusal.place),
            "reason": refusal.reason,
            "allowed": self._describe_allowed(refusal.allowed),
        }

    def _describe_allowed(self, allowed: Allowed) -> dict[str, Any]:
        return {
            "count": allowed.count,
            "share": round(allowed.count / len(self._vocabulary), 6),
            "examples": [self._token(token_id) for token_id in allowed.examples],
            "begin_with": begins(allowed.first_bytes),
            "may_end": allowed.may_end,
        }

    def _token(self, token_id: int) -> dict[str, Any]:
        """Return the id of a token, and its text, bytes or name."""
        token = self._vocabulary.tokens[token_id]
        if not token:
            return {"id": token_id, "special": self._vocabulary.special_tokens.get(token_id, "")}
        try:
            return {"id": token_id, "text": token.decode()}
        except UnicodeDecodeError:
            return {"id": token_id, "bytes": token.hex()}


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 1)
