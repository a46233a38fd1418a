"""A request on its way through the engine."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field

from guideway.api.errors import GuidewayError, InvalidRequest
from guideway.api.types import FinishReason, GenerationResult, Request
from guideway.api.vocabulary import Vocabulary
from guideway.constraints.runtime import Admission

__all__ = ["Sequence", "reason_of", "refusal"]


@dataclass(slots=True, eq=False)
class Sequence:
    """One prompt and its continuation. Filled in by the scheduler; read by whoever waits for it."""

    admission: Admission
    max_tokens: int
    """How many tokens to generate at most: what the caller asked for, cut to the context."""
    stop_token_ids: frozenset[int]
    inbox: list[GenerationResult]
    """Where its result is put as well."""
    output: list[int] = field(default_factory=list)
    text: str = ""
    """Of `output`, in whole characters: a character whose last bytes are still to come is not in it yet."""
    slots: list[int] = field(default_factory=list)
    """While it runs its own slot and then its companions'; empty before and after."""
    settled: bool = True
    """False from the beginning of a step until `append`: if the step is interrupted, cache and states may be ahead
    of `output`."""
    ending: FinishReason | None = None
    """Why it ends with the tokens it has; None: it goes on."""
    result: GenerationResult | None = None
    """Set once, when it ends."""
    _undecoded: bytes = b""

    @property
    def request(self) -> Request:
        return self.admission.request

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        """The prompt of each of its slots."""
        return [self.request.prompt_token_ids, *(c.prompt_token_ids for c in self.admission.companions)]

    def append(self, token_ids: list[int], vocabulary: Vocabulary, ending: FinishReason | None) -> None:
        """Add the final tokens of a step, which then is done."""
        shown = self._undecoded + vocabulary.decode([i for i in token_ids if i not in self.stop_token_ids])
        text, consumed = codecs.utf_8_decode(shown, "replace", False)
        # from here on nothing is called, so an interrupt finds all of it or nothing
        self._undecoded = shown[consumed:]
        self.text += text
        self.output += token_ids
        self.ending = ending
        self.settled = True

    def cut(self, token_ids: list[int]) -> list[int]:
        """`token_ids` up to the first stop token and the limit."""
        token_ids = token_ids[: self.max_tokens - len(self.output)]
        for i, token_id in enumerate(token_ids):
            if token_id in self.stop_token_ids:
                return token_ids[: i + 1]
        return token_ids

    def finish(
        self,
        reason: FinishReason,
        *,
        error: GuidewayError | None = None,
        strategy: str | None = None,
        unenforced: tuple[str, ...] = (),
    ) -> GenerationResult:
        """Set and return the result."""
        text = self.text + self._undecoded.decode(errors="replace")
        result = GenerationResult(
            request_id=self.request.request_id,
            prompt_token_ids=self.request.prompt_token_ids,
            text=text,
            token_ids=tuple(self.output),
            finish_reason=reason,
            error=error,
            strategy=strategy,
            unenforced=unenforced,
        )
        # again all or nothing
        self.text = text
        self.slots = []
        self.result = result
        self.inbox.append(result)
        return result


def refusal(request_id: str, error: GuidewayError) -> GenerationResult:
    """The result of a request that never started."""
    return GenerationResult(request_id=request_id, finish_reason=reason_of(error), error=error)


def reason_of(error: GuidewayError) -> FinishReason:
    """What a request that ends with `error` ended by."""
    return FinishReason.REFUSED if isinstance(error, InvalidRequest) else FinishReason.INTERNAL_ERROR
