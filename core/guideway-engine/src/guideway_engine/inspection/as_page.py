"""Formatting of an inspection as a self-contained HTML page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from math import log1p
from statistics import median
from string import Template
from typing import Any

from guideway.api.types import JsonSchema

from guideway_engine.inspection.inspecting import FEW, Inspection
from guideway_engine.inspection.verdict import judge_lines, step_token, unenforced_lines, verdict
from guideway_engine.inspection.words import begins, byte_count, costs, counted, percentage, share, token_text

__all__ = ["as_page"]


def as_page(inspection: Inspection, model: str) -> str:
    """Return the page: a verdict and the tokens in a row, each with the tokens that were allowed there."""
    page = _Page(inspection)
    template = Template((files(__package__) / "page.html").read_text(encoding="utf-8"))
    outcome = "" if inspection.text is None else "good" if inspection.passes else "bad"
    refusal = inspection.refusal
    source = inspection.constraint.source()
    if isinstance(inspection.constraint, JsonSchema):
        source = json.dumps(json.loads(source), ensure_ascii=False, indent=2)
    steps = json.dumps(list(page.steps()), ensure_ascii=False).replace("<", "\\u003c")  # inside a script
    return template.substitute(
        title=escape(model),
        subject=escape(f"{inspection.constraint.kind}, {model}, {inspection.strategy}"),
        outcome=outcome,
        verdict=escape(verdict(inspection)),
        refusal="" if refusal is None else page.allowed_there(),
        text="" if inspection.text is None else page.text(),
        judge=_list(judge_lines(inspection)),
        facts="".join(page.facts()),
        few=FEW,
        tallest=costs(page.tallest),
        pressure=PRESSURE if inspection.pressure else "",
        tokens="\n".join(page.tokens()),
        strategies="".join(page.strategies()),
        unenforced=_list(unenforced_lines(inspection)),
        kind=escape(inspection.constraint.kind),
        source=escape(source),
        steps=steps,
        shown=len(inspection.steps) - 1 if refusal is not None else 0,
    )


class _Page:
    """Renders the larger parts of a page."""

    def __init__(self, inspection: Inspection) -> None:
        self._of = inspection
        self.tallest = max(step.fill_seconds + (step.accept_seconds or 0) for step in inspection.steps)

    def facts(self) -> Iterator[str]:
        """Yield the numbers below the verdict."""
        of = self._of
        if of.text is not None:
            yield _fact("tokens", f"{len(of.token_ids):,}", counted(len(of.text), "byte"))
            tokens = max(1, sum(step.accepted and step.token_id is not None for step in of.steps))
            yield _fact(
                "forced", share(of.num_forced, tokens), f"{of.num_forced:,} in {counted(len(of.forced_runs), 'run')}"
            )
        yield _fact(
            "compile", costs(of.compile_seconds), f"{byte_count(of.nbytes)}; a matcher {costs(of.matcher_seconds)}"
        )
        masks = [step.fill_seconds for step in of.steps if step.choice != "none"]
        accepts = [step.accept_seconds for step in of.steps if step.accept_seconds is not None]
        for name, found in (("mask", masks), ("accept", accepts)):
            if found:
                yield _fact(f"{name}, per token", costs(median(found)), f"median; {costs(max(found))} at most")

    def allowed_there(self) -> str:
        """Render the tokens that were allowed where the text is refused."""
        assert self._of.refusal is not None
        examples = self._of.refusal.allowed.examples
        if not examples:
            return ""
        chips = "".join(
            f'<span class="chip mono">{escape(token_text(self._of.vocabulary, i))}</span>' for i in examples
        )
        more = " …" if self._of.refusal.allowed.count > len(examples) else ""
        return f"<div>allowed there: {chips}{more}</div>"

    def text(self) -> str:
        """Render the text, with a mark where it is refused."""
        text, refusal = self._of.text or b"", self._of.refusal
        if refusal is None:
            return f"<pre>{escape(text.decode(errors='backslashreplace'))}</pre>"
        # mark a whole character, even if the refused byte is in the middle of it
        good = text[: refusal.place.offset].decode(errors="ignore")
        rest = text[len(good.encode()) :].decode(errors="backslashreplace")
        mark = escape(rest[:1]) or "⌷"
        return f'<pre>{escape(good)}<mark>{mark}</mark><span class="rest">{escape(rest[1:])}</span></pre>'

    def tokens(self) -> Iterator[str]:
        """Yield the tokens in a row: the time of each, its text, and the number of allowed tokens."""
        of = self._of
        joined = {run.first + i for run in of.forced_runs for i in range(1, run.length)}
        for index, step in enumerate(of.steps):
            refused = of.refusal is not None and of.refusal.step == index
            classes = ["token", "refused" if refused else step.choice, *(["joined"] if index in joined else [])]
            spent = step.fill_seconds + (step.accept_seconds or 0)
            bar = f"--all:{self._height(spent):.3f};--mask-share:{step.fill_seconds / spent if spent else 1:.3f}"
            count = "end" if step.token_id is None and step.accepted else _short(step.allowed.count)
            label = f"{step_token(self._of, step)}: {step.allowed.count} allowed{', refused' if refused else ''}"
            yield (
                f'<button type="button" class="{" ".join(classes)}" data-step="{index}" aria-label="{escape(label)}">'
                f'<i style="{bar}"></i><b>{escape(step_token(self._of, step))}</b>'
                f"<s>{'✕ ' if refused else ''}{count}</s>{self._strip(index)}</button>"
            )
        for token_id in of.rest:
            shown = escape(token_text(of.vocabulary, token_id))
            yield f'<span class="token unread"><i></i><b>{shown}</b><s>&nbsp;</s></span>'

    def steps(self) -> Iterator[dict[str, Any]]:
        """Yield the data that the page shows when a token is selected."""
        of = self._of
        for index, step in enumerate(of.steps):
            refused = of.refusal is not None and of.refusal.step == index
            number = "after the last token" if step.token_id is None else f"token {index + 1}, id {step.token_id}"
            total = share(step.allowed.count, len(of.vocabulary))
            ends = ", the end among them" if step.allowed.may_end else ""
            said = f"{counted(step.allowed.count, 'token')} allowed, {total} of the vocabulary{ends}"
            examples = [token_text(of.vocabulary, token_id) for token_id in step.allowed.examples]
            spent = [("mask", step.fill_seconds), ("accept", step.accept_seconds)]
            yield {
                "token": step_token(self._of, step),
                "where": f"{number}, at byte {step.offset}; {'refused' if refused else _MEANING[step.choice]}",
                "allowed": said,
                "share": step.allowed.count / len(of.vocabulary),
                "examples": [*examples, "…"] if step.allowed.count > len(examples) else examples,
                "begins": begins(step.allowed.first_bytes),
                "costs": ", ".join(f"{name} {costs(seconds)}" for name, seconds in spent if seconds is not None),
                "pressure": (
                    f"the model gave them {percentage(of.pressure[index])}" if index < len(of.pressure) else ""
                ),
            }

    def strategies(self) -> Iterator[str]:
        """Yield a table row for each strategy."""
        for report in self._of.strategies:
            name = f'<th scope="row" class="{report.outcome}">{escape(report.name)}</th>'
            yield f"<tr>{name}<td>{report.outcome}</td><td>{escape(report.reason)}</td></tr>"

    def _strip(self, index: int) -> str:
        """Render the pressure at a token; nothing if it was not recorded."""
        if index >= len(self._of.pressure):
            return ""
        return f'<em style="--left:{self._of.pressure[index]:.4f}"></em>'

    def _height(self, seconds: float) -> float:
        """Return the length of a bar, from 0 to 1, on a logarithmic scale, so that one slow step does not flatten all
        others."""
        return log1p(seconds * 1e6) / log1p(self.tallest * 1e6) if self.tallest else 0.0


PRESSURE = (
    '<li><span class="strip"></span>strip at the bottom: the probability that the model gave to all allowed tokens</li>'
)

_MEANING = {
    "forced": "no other token was allowed",
    "spelled": "only this text was allowed, in these or other tokens",
    "few": "few tokens were allowed",
    "many": "many tokens were allowed",
    "none": "nothing was allowed",
}


def _list(lines: list[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if lines else ""


def _fact(name: str, value: str, note: str) -> str:
    return f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"


def _short(count: int) -> str:
    """Abbreviate a number: ``999``, ``1.4k``, ``128k``."""
    if count < 1000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 10_000 else f"{count / 1000:.0f}k"
