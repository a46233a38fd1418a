"""A request on its way through the engine, and the sequences that continue its prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from guideway.api.types import Completion, FinishReason, GenerationResult, Request, TokenLogprobs
from guideway.api.vocabulary import Vocabulary
from guideway.errors import GuidewayError, InvalidRequest, without_frames
from guideway.runtime.admission import Admission

from guideway_engine.scheduling.drafter import PromptLookup
from guideway_engine.scheduling.text_stream import TextStream

__all__ = ["SequenceGroup", "SequenceState", "reason_of", "refusal"]


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """One request and its sequences."""

    admission: Admission
    arrival: int
    """Its number among the requests of the engine."""
    max_tokens: int
    """The most tokens that each sequence generates: what the caller asked for, cut to the context."""
    stop_token_ids: frozenset[int]
    inbox: list[GenerationResult]
    """A list into which its result is put as well."""
    parse: Callable[[str], Any] | None = None
    """Makes the object of a complete answer."""
    prompt_text: str = ""
    """The text that its texts begin with."""
    prompts: tuple[tuple[int, ...], ...] = ()
    """Its own prompt and its companions'."""
    sequences: list[SequenceState] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """Grows as the prompt is scored; None if that was not asked for."""
    result: GenerationResult | None = None
    """Set once, when its last sequence ends."""

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
        """Return what is still to come of the texts that are judged."""
        found = [sequence.verdict for sequence in self.sequences]
        return [verdict for verdict in found if verdict is not None and not verdict.done()]

    def conclude(self) -> GenerationResult | None:
        """Set, file and return the result when every sequence has ended and is judged; None before, and if it is set
        already."""
        if self.result is not None:
            return None
        if not self.has_ended() or self.verdicts():
            return None
        ended = [sequence.judged() for sequence in self.sequences]
        params = self.request.params
        if params.best_of is not None:
            ended = sorted(ended, key=_quality, reverse=True)[: params.n]
        if params.logprobs is None:  # they were only there to rank by
            ended = [replace(completion, logprobs=None) for completion in ended]
        scored = self.prompt_logprobs
        result = GenerationResult(
            request_id=self.request.request_id,
            prompt_token_ids=self.request.prompt_token_ids,
            outputs=tuple(ended),
            prompt_logprobs=None if scored is None else tuple(scored),
        )
        self.result = result
        self.admission = replace(self.admission, compilation=None)  # a result that is kept keeps no grammar
        self.inbox.append(result)
        return result

    def let_go(self) -> None:
        """Drop its sequences, when all is over: they refer to it, and it would stay until garbage is collected."""
        for sequence in self.sequences:
            if not sequence.is_over():
                del sequence.group


@dataclass(slots=True, eq=False)
class SequenceState:
    """One continuation of a prompt. Filled in by the scheduler; read through `Generation`."""

    group: SequenceGroup = field(repr=False)
    """Until `is_over`."""
    index: int
    output: list[int] = field(default_factory=list)
    attempt: int = 0
    """The number of times that its output was drawn before, and not valid."""
    text: str = ""
    """The final part of the text of `output`; see `TextStream`."""
    logprobs: list[TokenLogprobs] | None = None
    """The log-probabilities of each token of `output`, if asked for."""
    slots: list[int] = field(default_factory=list)
    """From its start to its end its own slot and then its companions'."""
    active: bool = False
    """True if its slots have room for keys and values; False before it joins and while it is preempted."""
    in_step: bool = False
    """True from the beginning of a step until `append`: if the step is interrupted, cache and states may be ahead
    of `output`."""
    ending: FinishReason | None = None
    """Why it ends with the tokens it has; None: it goes on."""
    stop: str | int | None = None
    """The stop string or token that ended it."""
    completion: Completion | None = None
    """Set once, when it ends."""
    verdict: Future[bool | None] | None = None
    """The value that `Completion.valid` will have, where its text is judged."""
    may_retry: bool = False
    """True if the runtime expects another attempt, should its output not be valid."""
    abandoned: bool = False
    """True if it ended before it started, and the runtime knows."""
    stream: TextStream = field(default_factory=TextStream)
    lookup: PromptLookup | None = None
    """The source of its drafts; made with the first."""
    id: str = field(init=False)
    """The name by which workers call it, and what they run beside it."""
    request: Request = field(init=False)
    tenant: str = field(init=False)
    priority: int = field(init=False)
    arrival: int = field(init=False)
    rank: tuple[int, int, int] = field(init=False)
    """Smaller is more important."""

    def __post_init__(self) -> None:
        self.request = self.group.request
        self.id = f"{self.request.request_id}/{self.index}"
        params = self.request.params
        self.tenant, self.priority, self.arrival = self.request.tenant, params.priority, self.group.arrival
        self.rank = (self.priority, self.arrival, self.index)
        if params.logprobs is not None or params.best_of is not None:
            self.logprobs = []

    def ready(self) -> bool:
        """Return whether it may start: its constraint is compiled, and the prompt it shares is computed."""
        return self.group.admission.ready() and (self.index == 0 or self.group.sequences[0].past_prompt())

    def past_prompt(self) -> bool:
        """Return whether others can begin with its prompt's keys and values, or never will."""
        return bool(self.output) or self.completion is not None

    def is_over(self) -> bool:
        """Return whether its request is over: the result was filed, and nothing is to be asked of the group."""
        return not hasattr(self, "group")

    def fork(self, index: int) -> SequenceState:
        """One with the same past, in no group and without slots."""
        logprobs = None if self.logprobs is None else list(self.logprobs)
        child = SequenceState(self.group, index, list(self.output), self.attempt, self.text, stream=self.stream)
        child.logprobs = logprobs
        return child

    def tokens(self, which: int, start: int, end: int) -> list[int]:
        """Token ids `start` to `end` of its own sequence (0) or a companion's: prompt, then output."""
        prompt = self.group.prompts[which]
        length = len(prompt)
        if start >= length:
            return self.output[start - length : end - length]
        return [*prompt[start:end], *self.output[: max(0, end - length)]]

    def last_token(self, which: int) -> int:
        """The last of them."""
        return self.output[-1] if self.output else self.group.prompts[which][-1]

    def length(self, which: int) -> int:
        """Return how many there are."""
        return len(self.group.prompts[which]) + len(self.output)

    def cut(self, token_ids: tuple[int, ...], vocabulary: Vocabulary) -> tuple[int, ...]:
        """`token_ids` up to what ends the sequence: a stop token, a stop string or the limit."""
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
        self, token_ids: Sequence[int], vocabulary: Vocabulary, *, finished: bool, logprobs: list[TokenLogprobs]
    ) -> None:
        """Add the final tokens of a step, which then is done; `finished`: a modifier says that they are the last."""
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
        # from here on nothing is called, so an interrupt finds all of it or nothing
        self.text, self.stream, self.stop = text, stream, stop
        if self.logprobs is not None:
            self.logprobs += logprobs
        self.output += token_ids
        self.ending = ending
        self.in_step = False

    def generated(self) -> str:
        """Its text if it ends now, without the prompt's."""
        return (self.text + self.stream.end())[len(self.group.prompt_text) :]

    def answer_start(self, reasoning: bytes) -> int:
        """Return where its answer begins in its text, after the prompt's and `reasoning`."""
        return len(self.group.prompt_text) + len(reasoning.decode(errors="replace"))

    def finish(
        self,
        reason: FinishReason,
        *,
        error: GuidewayError | None = None,
        strategy: str | None = None,
        unenforced: tuple[str, ...] = (),
        reasoning: bytes = b"",
        num_reasoning_tokens: int = 0,
        closed_early: bool = False,
        reports: Mapping[str, Mapping[str, Any]] | None = None,
        verdict: Future[bool | None] | None = None,
    ) -> Completion:
        """Set and return what it has become. The first `num_reasoning_tokens` of its tokens stand for `reasoning`."""
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
            num_reasoning_tokens=num_reasoning_tokens,
            answer_start=min(self.answer_start(reasoning), len(text)),
            closed_early=closed_early,
            reports=reports or {},
            logprobs=None if self.logprobs is None else tuple(self.logprobs),
            parse=self.group.parse,
        )
        # again all or nothing
        self.text, self.stream = text, TextStream()
        self.slots = []
        self.active = False
        self.verdict = verdict
        self.completion = completion
        return completion

    def judged(self) -> Completion:
        """Return what it has become, with the verdict, which is there, in it."""
        assert self.completion is not None
        return self.completion if self.verdict is None else replace(self.completion, valid=self.verdict.result())

    def _looks(self, i: int) -> bool:
        """Return whether a stop string that the i-th token from now completes ends the sequence."""
        return len(self.output) + i + 1 > self.request.params.min_tokens


def _quality(completion: Completion) -> float:
    """Compute what the best of several is chosen by: the mean raw log-probability of its tokens, as OpenAI's API has
    it; one that failed comes last."""
    logprobs = [entry.logprob for entry in completion.logprobs or ()]
    failed = completion.error is not None or not logprobs
    return -math.inf if failed else sum(logprobs) / len(logprobs)


def refusal(request_id: str, error: GuidewayError) -> GenerationResult:
    """The result of a request that never started."""
    completion = Completion(finish_reason=reason_of(error), error=without_frames(error))
    return GenerationResult(request_id=request_id, outputs=(completion,))


def reason_of(error: GuidewayError) -> FinishReason:
    """Return the finish reason of a request that ends with `error`."""
    return FinishReason.REFUSED if isinstance(error, InvalidRequest) else FinishReason.INTERNAL_ERROR
