"""Requests in the engine, and the sequences that continue their prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from guideway.api.records import Records
from guideway.api.types import Completion, FinishReason, GenerationResult, Losses, Request, TokenLogprobs
from guideway.api.vocabulary import Vocabulary
from guideway.errors import GuidewayError, InvalidRequest, without_frames
from guideway.runtime.admission.admission import Admission

from guideway_engine.scheduling.drafter import PromptLookup
from guideway_engine.scheduling.text_stream import TextStream

__all__ = ["RecordedTokens", "SequenceGroup", "SequenceState", "reason_of", "refusal"]


RecordedTokens: TypeAlias = tuple[Records, int, int]
"""The records of a step, and the first and the last + 1 of the entries for the tokens of one sequence."""


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """One request and its sequences."""

    admission: Admission
    arrival: int
    """Position of the request in the engine's order of arrival."""
    max_tokens: int
    """Maximum number of tokens that each sequence generates, limited by the context length."""
    stop_token_ids: frozenset[int]
    inbox: list[GenerationResult]
    """List that receives the result too."""
    parse: Callable[[str], Any] | None = None
    """Function that parses the text of a complete answer into an object."""
    verifies: bool = False
    """True if an answer that `parse` refuses is invalid."""
    prompt_text: str = ""
    """Text that each output's `text` begins with."""
    prompts: tuple[tuple[int, ...], ...] = ()
    """Prompt of the request, then the prompts of its companions."""
    sequences: list[SequenceState] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """Scores of the prompt tokens computed up to now; None if not requested."""
    result: GenerationResult | None = None
    """Set once, when the last sequence ends."""

    def __post_init__(self) -> None:
        request = self.request
        self.prompts = (request.prompt_token_ids, *(c.prompt_token_ids for c in self.admission.companions))
        if request.params.prompt_logprobs is not None:
            self.prompt_logprobs = [None]
        self.sequences = [
            SequenceState(self, index, text=self.prompt_text) for index in range(request.params.num_sequences)
        ]

    @property
    def request(self) -> Request:
        return self.admission.request

    def has_ended(self) -> bool:
        """Return whether every sequence has ended."""
        return all(sequence.completion is not None for sequence in self.sequences)

    def verdicts(self) -> list[Future[bool | None]]:
        """Return the verdicts that are not available yet."""
        found = [sequence.verdict for sequence in self.sequences]
        return [verdict for verdict in found if verdict is not None and not verdict.done()]

    def conclude(self) -> GenerationResult | None:
        """Set and return the result, and put it into `inbox`, once every sequence has ended and is judged. Return None
        before that, and if it is set already."""
        if self.result is not None:
            return None
        if not self.has_ended() or self.verdicts():
            return None
        ended = [sequence.judged() for sequence in self.sequences]
        params = self.request.params
        if params.best_of is not None:
            ended = sorted(ended, key=_quality, reverse=True)[: params.n]
        if params.logprobs is None:  # they were only needed for ranking
            ended = [replace(completion, logprobs=None) for completion in ended]
        scored = self.prompt_logprobs
        result = GenerationResult(
            request_id=self.request.request_id,
            prompt_token_ids=self.request.prompt_token_ids,
            outputs=tuple(ended),
            prompt_logprobs=None if scored is None else tuple(scored),
        )
        self.result = result
        # a result that the caller keeps must not keep the grammar alive
        self.admission = replace(self.admission, compilation=None)
        self.inbox.append(result)
        return result

    def let_go(self) -> None:
        """Break the reference cycle with its sequences, so that they are freed without garbage collection."""
        for sequence in self.sequences:
            if not sequence.is_over():
                del sequence.group


@dataclass(slots=True, eq=False)
class SequenceState:
    """One continuation of a prompt. Filled in by the scheduler; read through `Generation`."""

    group: SequenceGroup = field(repr=False)
    """Deleted once `is_over`."""
    index: int
    output: list[int] = field(default_factory=list)
    attempt: int = 0
    """Number of earlier attempts, whose outputs were invalid."""
    text: str = ""
    """Final part of the text of `output`; see `TextStream`."""
    logprobs: list[TokenLogprobs] | None = None
    """Log-probabilities of each token of `output`, if requested."""
    records: list[RecordedTokens] | None = None
    """Records of the tokens of `output`, if requested; joined when it ends."""
    slots: list[int] = field(default_factory=list)
    """Its own slot, then its companions' slots; empty before it starts and after it ends."""
    active: bool = False
    """True if its slots have room for keys and values; False before it starts and while it is preempted."""
    in_step: bool = False
    """True from the beginning of a step until `append`: if the step is interrupted, cache and states may be ahead of
    `output`."""
    ending: FinishReason | None = None
    """Reason why it ends with its present tokens; None while it continues."""
    stop: str | int | None = None
    """Stop string or token that ended it."""
    completion: Completion | None = None
    """Set once, when it ends."""
    verdict: Future[bool | None] | None = None
    """Future value of `Completion.valid`, if the text is judged."""
    may_retry: bool = False
    """True if the runtime expects another attempt should the output be invalid."""
    abandoned: bool = False
    """True if it ended before it started, and the runtime was notified."""
    stream: TextStream = field(default_factory=TextStream)
    lookup: PromptLookup | None = None
    """Source of drafts; created with the first one."""
    id: str = field(init=False)
    """Identifier for workers."""
    request: Request = field(init=False)
    tenant: str = field(init=False)
    priority: int = field(init=False)
    arrival: int = field(init=False)
    rank: tuple[int, int, int] = field(init=False)
    """Lower ranks are more important."""

    def __post_init__(self) -> None:
        self.request = self.group.request
        self.id = f"{self.request.request_id}/{self.index}"
        params = self.request.params
        self.tenant, self.priority, self.arrival = self.request.tenant, params.priority, self.group.arrival
        self.rank = (self.priority, self.arrival, self.index)
        if params.logprobs is not None or params.best_of is not None:
            self.logprobs = []
        if params.records:
            self.records = []
        if not self.output:
            self.stream = TextStream(skip=len(self.group.admission.allowed_prefix))

    def ready(self) -> bool:
        """Return whether it may start: its constraint is compiled, and the prompt that it shares is computed."""
        return self.group.admission.ready() and (self.index == 0 or self.group.sequences[0].past_prompt())

    def past_prompt(self) -> bool:
        """Return whether the keys and values of its prompt can be shared, or never will be."""
        return bool(self.output) or self.completion is not None

    def is_over(self) -> bool:
        """Return whether its request is over: the result is filed, and `group` is deleted."""
        return not hasattr(self, "group")

    def fork(self, index: int) -> SequenceState:
        """Return a new sequence with the same tokens, without slots; the group does not list it yet."""
        logprobs = None if self.logprobs is None else list(self.logprobs)
        child = SequenceState(self.group, index, list(self.output), self.attempt, self.text, stream=self.stream)
        child.logprobs = logprobs
        child.records = None if self.records is None else list(self.records)
        return child

    def tokens(self, which: int, start: int, end: int) -> list[int]:
        """Return token ids `start` to `end` of its own sequence (0) or a companion's: prompt, then output."""
        prompt = self.group.prompts[which]
        length = len(prompt)
        if start >= length:
            return self.output[start - length : end - length]
        return [*prompt[start:end], *self.output[: max(0, end - length)]]

    def last_token(self, which: int) -> int:
        """Return the last token of its own sequence (0) or a companion's."""
        return self.output[-1] if self.output else self.group.prompts[which][-1]

    def length(self, which: int) -> int:
        """Return the number of tokens, prompt included, of its own sequence (0) or a companion's."""
        return len(self.group.prompts[which]) + len(self.output)

    def cut(self, token_ids: tuple[int, ...], vocabulary: Vocabulary) -> tuple[int, ...]:
        """Return `token_ids` up to the token that ends the sequence: by a stop token, a stop string or the limit."""
        token_ids = token_ids[: self.group.max_tokens - len(self.output)]
        stop_token_ids = self.group.stop_token_ids
        for i, token_id in enumerate(token_ids):
            if token_id in stop_token_ids:
                token_ids = token_ids[: i + 1]
                break
        if self.request.params.stop and len(token_ids) > 1:
            stream = self.stream
            for i, token_id in enumerate(token_ids):
                piece = stream.extended(vocabulary.tokens[token_id], self.request.params.stop, look=self._looks(i))
                if piece.stop is not None:
                    return token_ids[: i + 1]
                stream = piece.stream
        return token_ids

    def append(
        self,
        token_ids: Sequence[int],
        vocabulary: Vocabulary,
        *,
        finished: bool,
        logprobs: list[TokenLogprobs],
        records: RecordedTokens | None = None,
    ) -> None:
        """Append the final tokens of a step, and mark the step as done. `finished`: a modifier ended the sequence with
        them."""
        text, stream, params = self.text, self.stream, self.request.params
        ending: FinishReason | None = None
        stop: str | int | None = None
        for i, token_id in enumerate(token_ids):
            if token_id in self.group.stop_token_ids:
                ending, stop = FinishReason.STOP, token_id
                break
            piece = stream.extended(vocabulary.tokens[token_id], params.stop, look=self._looks(i))
            text += piece.text
            stream = piece.stream
            if piece.stop is not None:
                ending, stop = FinishReason.STOP, piece.stop
                break
        if ending is None and finished:
            ending = FinishReason.STOP
        if ending is None and len(self.output) + len(token_ids) >= self.group.max_tokens:
            ending = FinishReason.LENGTH
        # only assignments from here, so an interrupt leaves either all of the change or none
        self.text, self.stream, self.stop = text, stream, stop
        if self.logprobs is not None:
            self.logprobs += logprobs
        if self.records is not None and records is not None:
            self.records.append(records)
        self.output += token_ids
        self.ending = ending
        self.in_step = False

    def generated(self) -> str:
        """Return the generated text, without the prompt's, as if the sequence ended now."""
        return (self.text + self.stream.end())[len(self.group.prompt_text) :]

    def answer_start(self, reasoning: bytes) -> int:
        """Return the position in its text where the answer begins, after the prompt and `reasoning`."""
        return len(self.group.prompt_text) + len(reasoning.decode(errors="replace"))

    def finish(
        self,
        reason: FinishReason,
        *,
        error: GuidewayError | None = None,
        strategy: str | None = None,
        unenforced: tuple[str, ...] = (),
        losses: Losses | None = None,
        reasoning: bytes = b"",
        num_reasoning_tokens: int = 0,
        closed_early: bool = False,
        reports: Mapping[str, Mapping[str, Any]] | None = None,
        verdict: Future[bool | None] | None = None,
    ) -> Completion:
        """Set and return the completion. The first `num_reasoning_tokens` of its tokens are the `reasoning`."""
        text = self.text + self.stream.end()
        completion = Completion(
            index=self.index,
            text=text,
            token_ids=tuple(self.output),
            finish_reason=reason,
            stop=self.stop if reason is FinishReason.STOP else None,
            error=error,
            strategy=strategy,
            unenforced=unenforced,
            losses=losses or Losses(),
            num_reasoning_tokens=num_reasoning_tokens,
            answer_start=min(self.answer_start(reasoning), len(text)),
            closed_early=closed_early,
            reports=reports or {},
            logprobs=None if self.logprobs is None else tuple(self.logprobs),
            records=None if self.records is None else Records.join(self.records),
            parse=self.group.parse,
        )
        # only assignments: all or nothing
        self.text, self.stream = text, TextStream()
        self.slots = []
        self.active = False
        self.verdict = verdict
        self.completion = completion
        return completion

    def judged(self) -> Completion:
        """Return the completion with its verdict, which must be available."""
        assert self.completion is not None
        return self.completion if self.verdict is None else replace(self.completion, valid=self.verdict.result())

    def _looks(self, i: int) -> bool:
        """Return whether a stop string completed by the i-th token from now ends the sequence (`min_tokens`)."""
        return len(self.output) + i + 1 > self.request.params.min_tokens


def _quality(completion: Completion) -> float:
    """Return the score that `best_of` ranks by: the mean raw log-probability of the tokens, as in OpenAI's API. Failed
    completions rank last."""
    logprobs = [entry.logprob for entry in completion.logprobs or ()]
    failed = completion.error is not None or not logprobs
    return -math.inf if failed else sum(logprobs) / len(logprobs)


def refusal(request_id: str, error: GuidewayError) -> GenerationResult:
    """Return the result of a request that never started."""
    completion = Completion(finish_reason=reason_of(error), error=without_frames(error))
    return GenerationResult(request_id=request_id, outputs=(completion,))


def reason_of(error: GuidewayError) -> FinishReason:
    """Return the finish reason of a request that ends with `error`."""
    return FinishReason.REFUSED if isinstance(error, InvalidRequest) else FinishReason.INTERNAL_ERROR
