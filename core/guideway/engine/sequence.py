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
    output: list[int] = field(default_factory=list)
    text: str = ""
    """Of `output`, in whole characters: a character whose last bytes are still to come is not in it yet."""
    slot: int = -1
    """Its slot while it runs, -1 before and after."""
    companion_slots: list[int] = field(default_factory=list)
    result: GenerationResult | None = None
    """Set once, when it ends."""
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )

    @property
    def request(self) -> Request:
        return self.admission.request

    def append(self, token_ids: list[int], vocabulary: Vocabulary) -> None:
        """Add final tokens."""
        self.output += token_ids
        shown = [i for i in token_ids if i not in self.stop_token_ids]
        self.text += self._decoder.decode(vocabulary.decode(shown))

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
        self.text += self._decoder.decode(b"", final=True)
        self.result = GenerationResult(
            request_id=self.request.request_id,
            prompt_token_ids=self.request.prompt_token_ids,
            text=self.text,
            token_ids=tuple(self.output),
            finish_reason=reason,
            error=error,
            strategy=strategy,
            unenforced=unenforced,
        )
        return self.result


def refusal(request_id: str, error: GuidewayError) -> GenerationResult:
    """The result of a request that never started."""
    return GenerationResult(request_id=request_id, finish_reason=reason_of(error), error=error)


def reason_of(error: GuidewayError) -> FinishReason:
    """What a request that ends with `error` ended by."""
    return FinishReason.REFUSED if isinstance(error, InvalidRequest) else FinishReason.INTERNAL_ERROR
