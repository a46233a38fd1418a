"""Sentences about the outcome of an inspection, shared by table and page."""

from __future__ import annotations

from statistics import median

from guideway.api.types import JsonSchema

from guideway_engine.inspection.inspecting import Allowed, Inspection, Step
from guideway_engine.inspection.words import bar, begins, byte_count, costs, counted, percentage, token_text

__all__ = [
    "allowed_words",
    "costs_line",
    "forced_line",
    "judge_lines",
    "step_token",
    "step_words",
    "unenforced_lines",
    "verdict",
]


def verdict(inspection: Inspection) -> str:
    """Say whether the text satisfies the constraint, and if not, where it is refused."""
    refusal = inspection.refusal
    if inspection.text is None:
        return "No text: these tokens may come first."
    if refusal is not None:
        place = refusal.place
        inside = f", at {place.pointer} of its JSON" if place.pointer is not None else ""
        said = "Right, in another order: the schema's order is left" if inspection.in_another_order else "Refused"
        return f"{said} at byte {place.offset} (line {place.line}, column {place.column}){inside}: {refusal.reason}."
    if inspection.valid is False:
        return f"{inspection.strategy} accepts the text, but it is not valid under the schema."
    return "Accepted: the text satisfies the constraint."


def judge_lines(inspection: Inspection) -> list[str]:
    """Return the findings of ``jsonschema`` on the whole text."""
    if inspection.text is None or not isinstance(inspection.constraint, JsonSchema):
        return []
    if inspection.valid is None:
        return ["jsonschema cannot tell: the schema has a reference that cannot be resolved here"]
    if inspection.valid:
        return ["jsonschema: valid"]
    lines = []
    for fault in inspection.faults:
        where = f" (at {fault.place}, by {fault.keyword})" if fault.keyword else ""
        lines.append(f"jsonschema: {_cut(fault.message)}{where}")
    return lines or ["jsonschema: not valid"]


def unenforced_lines(inspection: Inspection) -> list[str]:
    """List the keywords that the chosen strategy does not enforce, each with its places."""
    return [
        f"{each.name}{' at ' if each.places else ''}{', '.join(each.places)}" for each in inspection.unenforced
    ] or ["nothing: every part of the constraint is enforced"]


def costs_line(inspection: Inspection) -> str:
    """Describe the time to compile, and the median and maximum times of a step."""
    parts = [
        f"compile {costs(inspection.compile_seconds)} ({byte_count(inspection.nbytes)})",
        f"matcher {costs(inspection.matcher_seconds)}",
    ]
    masks = [step.fill_seconds for step in inspection.steps if step.choice != "none"]
    accepts = [step.accept_seconds for step in inspection.steps if step.accept_seconds is not None]
    for name, found in (("mask", masks), ("accept", accepts)):
        if found:
            parts.append(f"{name} {costs(median(found))} in the middle, {costs(max(found))} at most")
    return ", ".join(parts)


def forced_line(inspection: Inspection) -> str:
    """Count the tokens without a choice."""
    tokens, runs = counted(len(inspection.token_ids), "token"), inspection.forced_runs
    if not runs:
        return f"{tokens}, none forced or spelled"
    longest = max(run.length for run in runs)
    count = f"{inspection.num_forced:,} forced or spelled"
    return f"{tokens}, {count}, in {counted(len(runs), 'run')} (the longest: {longest})"


def pressure_words(inspection: Inspection, index: int) -> str:
    """Draw the probability of the tokens that were allowed at a step, where it was recorded."""
    if index >= len(inspection.pressure):
        return ""
    return f"{bar(inspection.pressure[index]):8} {percentage(inspection.pressure[index])}"


def step_words(step: Step) -> str:
    """Describe the number of allowed tokens: ``1 forced``."""
    return "" if step.choice == "none" else f"{step.allowed.count:,} {step.choice}"


def step_token(inspection: Inspection, step: Step) -> str:
    """Return the text of a step's token, or a word for its absence."""
    if step.token_id is not None:
        return token_text(inspection.vocabulary, step.token_id)
    return "(start)" if inspection.text is None else "(end)"


def allowed_words(inspection: Inspection, allowed: Allowed, *, in_tokens: bool) -> str:
    """Describe the allowed tokens, by the tokens themselves or by their first characters."""
    examples = [token_text(inspection.vocabulary, token_id) for token_id in allowed.examples]
    if not examples:
        return "nothing"
    if in_tokens or not allowed.first_bytes:
        return "  ".join([*examples, "…"] if allowed.count > len(examples) else examples)
    return begins(allowed.first_bytes) + ("  or the end" if allowed.may_end else "")


def _cut(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:297]}..."
