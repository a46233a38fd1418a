"""The failures of `faulty` for vLLM without guideway: a toy backend and a toy logits processor that fail on request.
`register` is an entry point of ``vllm.general_plugins``."""

from __future__ import annotations

import json
from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor

from tests.vllm.faulty import Plan, plan_of


class ToyGrammar:
    """Wraps a grammar of xgrammar until it is time to fail."""

    def __init__(self, grammar: Any, plan: Plan) -> None:
        self._grammar, self._plan, self._num_tokens = grammar, plan, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grammar, name)

    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        if self._plan.due("fill_bitmask", self._num_tokens):
            bitmask[row] = 0  # if `how` is "empty", and at a dead end
            return
        self._grammar.fill_bitmask(bitmask, row)

    def accept_tokens(self, request_id: str, token_ids: list[int]) -> Any:
        if self._plan.due("accept", self._num_tokens):
            return False if self._plan.how == "refuse" else "two"
        self._num_tokens += len(token_ids)
        return self._grammar.accept_tokens(request_id, token_ids)


def register() -> None:
    """Replace xgrammar's backend by one that reads a plan from a schema's description."""
    import vllm.v1.structured_output as home

    if home.XgrammarBackend.__name__ == "ToyBackend":
        return

    class ToyBackend(home.XgrammarBackend):  # type: ignore[misc, name-defined]
        def compile_grammar(self, request_type: Any, grammar_spec: str, **options: Any) -> Any:
            plan = Plan()
            if "description" in grammar_spec:
                plan = plan_of(json.loads(json.loads(grammar_spec)["description"]))
            plan.compile()
            return ToyGrammar(super().compile_grammar(request_type, grammar_spec, **options), plan)

    home.XgrammarBackend = ToyBackend


class ToyProcessor(LogitsProcessor):  # type: ignore[misc]
    """Does nothing until it is time to fail."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self._rows: dict[int, tuple[Plan, list[int]]] = {}

    @classmethod
    def validate_params(cls, params: Any) -> None:
        if (params.extra_args or {}).get("toy.validate"):
            raise ValueError("validate_params was asked to fail")

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, update: Any) -> None:
        if update is not None:
            for row in update.removed:
                self._rows.pop(row, None)
            for row, params, _, output in update.added:
                self._rows[row] = (plan_of(json.loads((params.extra_args or {}).get("toy", "{}"))), output)
            for source, target, direction in update.moved:
                moved, other = self._rows.pop(source, None), self._rows.pop(target, None)
                if moved is not None:
                    self._rows[target] = moved
                if other is not None and direction.name == "SWAP":
                    self._rows[source] = other
        for plan, output in self._rows.values():
            plan.due("prepare", len(output))

    def apply(self, logits: Any) -> Any:
        for row, (plan, output) in self._rows.items():
            if plan.due("apply", len(output)):
                if plan.how == "type":
                    return "logits"
                if plan.how == "shape":
                    return logits[:, :-1]
                logits[row] = torch.nan
        return logits
