"""A model that runs one token at a time, so that no bit of a token's logits depends on what runs beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from guideway.api.forward import Append, ForwardOutput, ForwardStep

from guideway_engine.runners.transformers.model_runner import TransformersRunner

__all__ = ["BatchInvariantRunner"]


class BatchInvariantRunner(TransformersRunner):
    """Runs a model of `transformers` with a forward pass per token.

    A matrix product sums in an order that depends on its shape. Here all shapes depend only on the position of the
    token, not on the other sequences of the step, nor on how prompts are split, drafts, or cached prefixes.
    """

    contract = "1.0"
    name = "batch_invariant"

    def run(self, step: ForwardStep) -> ForwardOutput:
        with torch.inference_mode():
            found = [self.packed.forward(replace(step, appends=[append])) for append in _tokens(step)]
            hidden = [output.hidden_states for output in found if output.hidden_states is not None]
            return ForwardOutput(torch.cat([output.logits for output in found]), torch.cat(hidden) if hidden else None)


def _tokens(step: ForwardStep) -> Iterator[Append]:
    """Yield the appends of single tokens, in the order of the rows."""
    for append in step.appends:
        first_row = len(append.token_ids) - append.num_rows
        for i, token_id in enumerate(append.token_ids):
            yield Append(append.region, append.length + i, [token_id], int(i >= first_row))
