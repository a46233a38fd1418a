"""Token healing: the last tokens of a prompt are written again by the model, in tokens that may be longer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from guideway import api
from guideway.api.options import Range


@dataclass(frozen=True)
class Wish:
    """The wish of a request."""

    tokens: Annotated[int, Range(1, 16)] = 1
    """Most tokens to take off the end of the prompt."""


class Unchanged(api.LogitTransform):
    """Changes no logits: the host restricts the first tokens."""

    def apply(self, logits: api.Array, payload: api.Payload, step: api.Step) -> api.Array:
        return logits


class Healing(api.LogitModifier[Wish]):
    """In the scheduler: shortens the prompt of each request. Keeps the first token, and special tokens with all before
    them."""

    contract, name, stage, transform, derived = "1.0", "healing", api.Stage.PRE_WARP, Unchanged, True
    needs = frozenset({api.Need.EDIT_PROMPT})
    examples = (api.Example({}), api.Example({"tokens": 3}))

    def edit_prompt(self, request: api.Request) -> tuple[Sequence[int], bytes]:
        wish, texts = self.wish(request), self.context.vocabulary.tokens
        token_ids, kept = request.prompt_token_ids, len(request.prompt_token_ids)
        while kept > 1 and len(token_ids) - kept < wish.tokens and texts[token_ids[kept - 1]]:
            kept -= 1
        return token_ids[:kept], b"".join(texts[token_id] for token_id in token_ids[kept:])

    def wish(self, request: api.Request) -> Wish:
        """Return the wish of a request that selects healing. Raises `InvalidRequest`."""
        return api.parse_options(Wish, request.params.modifiers[self.name], where="modifiers.healing")

    def start(self, request: api.Request, sequence: api.SequenceInfo, compiled: Any) -> Wish | None:
        return self.wish(request) if self.name in request.params.modifiers else None

    def prepare(self, batch: api.StepBatch, states: Sequence[Wish | None]) -> api.Payload | None:
        return None


@api.hookimpl
def guideway_logit_modifier() -> type[api.LogitModifier[Any]]:
    return Healing
