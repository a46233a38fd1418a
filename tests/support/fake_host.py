"""A host without an engine: about a hundred lines around the runtime and the pipeline, with a hash as its model.

The model's logits are a function of the preceding tokens, so a run can be repeated, forked, rebuilt and compared. With
`num_drafts` it proposes drafts, some right and some wrong, and verifies them.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from guideway.api import (
    Companion,
    Completion,
    DeviceBackend,
    FinishReason,
    GenerationResult,
    GrammarStrategy,
    GuidewayError,
    InvalidRequest,
    LogitModifier,
    ModifierContext,
    Need,
    Request,
    SamplingParams,
    StepBatch,
    TokenLogprobs,
    Vocabulary,
    WorkerContext,
)
from guideway.api.device import padded_size
from guideway.pipeline import Pipeline, accepted_tokens
from guideway.runtime.modifiers.rows import token_logprobs
from guideway.runtime.runtime import Runtime

OFFERS = frozenset(Need) - {Need.SCHEDULER_DRAW}


def model(token_ids: Sequence[int], vocabulary: Vocabulary) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return logits after `token_ids`: noise seeded by the last four tokens, also past the vocabulary."""
    seed = zlib.crc32(np.asarray(token_ids[-4:], dtype=np.int64).tobytes())
    return np.random.default_rng(seed).normal(scale=2.0, size=vocabulary.logits_width).astype(np.float32)


class FakeHost:
    """Runs requests together in one batch, every sequence in every step, until all have ended."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        device: DeviceBackend,
        *,
        strategies: Mapping[str, GrammarStrategy] | None = None,
        modifiers: Sequence[type[LogitModifier[Any]]] = (),
        num_drafts: int = 0,
        offers: frozenset[Need] = OFFERS,
        runtime: Runtime | None = None,
        **options: Any,
    ) -> None:
        self.vocabulary, self.device, self.num_drafts = vocabulary, device, num_drafts
        if runtime is None:
            context = ModifierContext(vocabulary=vocabulary, max_num_sequences=16, max_model_len=256)
            instances = [cls({}, context) for cls in modifiers]
            runtime = Runtime(context, strategies=strategies or {}, modifiers=instances, offers=offers, **options)
        self.runtime = runtime
        worker = WorkerContext(device=device, vocabulary_size=len(vocabulary), logits_width=vocabulary.logits_width)
        self.pipeline = Pipeline(self.runtime.modifier_classes(), worker)
        self.companions: dict[int, Sequence[Companion]] = {}
        self.tokens: dict[int, list[int]] = {}
        self.requests: dict[int, Request] = {}
        self.limits: dict[int, int] = {}
        self.logprobs: dict[int, list[TokenLogprobs]] = {}
        self.results: dict[int, GenerationResult] = {}

    def generate(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> list[GenerationResult]:
        """Return one result per prompt, in order."""
        self.tokens, self.requests, self.limits, self.results = {}, {}, {}, {}
        for slot, (prompt, wanted) in enumerate(zip(prompts, params, strict=True)):
            self.join(slot, Request(request_id=str(slot), prompt_token_ids=tuple(prompt), params=wanted))
        while self.tokens:
            self.step()
        return [self.results[slot] for slot in range(len(prompts))]

    def join(self, slot: int, request: Request) -> None:
        """Admit a request to `slot`, or record why it is refused."""
        admission = None
        try:
            admission = self.runtime.admit(request)
            request = admission.request
            self.runtime.start(admission, slot)
        except GuidewayError as error:
            if admission is not None:
                self.runtime.abandon(admission)
            refused = Completion(finish_reason=reason_of(error), error=error)
            self.results[slot] = GenerationResult(request_id=request.request_id, outputs=(refused,))
            return
        self.companions[slot], self.requests[slot] = admission.companions, admission.request
        self.tokens[slot] = list(request.prompt_token_ids)
        self.logprobs[slot] = []
        self.limits[slot] = len(request.prompt_token_ids) + (request.params.max_tokens or 32)

    def drafts(self, tokens: list[int]) -> list[int]:
        """Return the bare model's greedy continuation, with some tokens replaced."""
        ahead = list(tokens)
        for i in range(self.num_drafts):
            guess = int(model(ahead, self.vocabulary)[: len(self.vocabulary)].argmax())
            ahead.append(guess if (len(ahead) + i) % 5 else (guess + 1) % len(self.vocabulary))
        return ahead[len(tokens) :]

    def logits(self, batch: StepBatch) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Run the forward pass; return sampled rows, then the companions' rows."""
        sampled: list[Any] = []
        companions: list[Any] = []
        for i, slot in enumerate(batch.slots.tolist()):
            ahead = batch.drafts(i).tolist()
            prompt = self.request(slot).prompt_token_ids
            contexts = [self.tokens[slot]]
            contexts += [[*c.prompt_token_ids, *self.tokens[slot][len(prompt) :]] for c in self.companions[slot]]
            for j, context in enumerate(contexts):
                rows = [model([*context, *ahead[:k]], self.vocabulary) for k in range(len(ahead) + 1)]
                (sampled if j == 0 else companions).extend(rows)
        rows = sampled + companions
        if self.device.static_shapes:
            rows += [np.full(self.vocabulary.logits_width, 7, np.float32)] * (padded_size(len(rows)) - len(rows))
        return np.stack(rows)

    def step(self) -> None:
        """Run one step of every running sequence."""
        slots = list(self.tokens)
        batch = StepBatch.build(
            slots, [len(self.tokens[slot]) for slot in slots], [self.drafts(self.tokens[slot]) for slot in slots]
        )
        step = self.runtime.prepare(batch)
        logits = self.logits(batch)
        asarray = self.device.ops.asarray
        output = self.pipeline.run(asarray(logits), step, hidden_states=asarray(logits.copy()))
        drawn = accepted_tokens(batch, output.token_ids)
        finals = [[] if self.runtime.is_late(s) else self.cut(s, ids) for s, ids in zip(slots, drawn, strict=True)]
        outcomes = self.runtime.accept(batch, finals, output)
        for slot, first_row, ids, outcome in zip(slots, batch.row_start.tolist(), finals, outcomes, strict=False):
            wanted = self.request(slot).params.logprobs
            if outcome.action != "fail":
                self.tokens[slot] += ids
                if output.logprobs is not None and wanted is not None:
                    start = int(np.searchsorted(output.logprobs.rows, first_row))
                    self.logprobs[slot] += token_logprobs(
                        output.logprobs, start, ids, wanted, self.runtime.context.vocabulary
                    )
            stopped = bool(ids) and ids[-1] in self.stops(slot)
            if outcome.action != "continue" or stopped or len(self.tokens[slot]) >= self.limits[slot]:
                self.finish(slot, FinishReason.STOP if stopped or outcome.action == "finish" else FinishReason.LENGTH)

    def request(self, slot: int) -> Request:
        """Return the request of a running sequence; its journal is read once, since reading it ends a steady batch."""
        if slot not in self.requests:
            self.requests[slot] = self.runtime.journal(slot).request
        return self.requests[slot]

    def stops(self, slot: int) -> frozenset[int]:
        """Return the token ids that end the sequence."""
        params = self.request(slot).params
        own = frozenset[int]() if params.ignore_eos else self.vocabulary.stop_token_ids
        return own | frozenset(params.stop_token_ids)

    def cut(self, slot: int, ids: list[int]) -> list[int]:
        """Return the final tokens up to the first stop token and the limit."""
        ids = ids[: self.limits[slot] - len(self.tokens[slot])]
        stops = [i for i, token_id in enumerate(ids) if token_id in self.stops(slot)]
        return ids[: stops[0] + 1] if stops else ids

    def finish(self, slot: int, reason: FinishReason) -> None:
        """Record the result and free the slot."""
        reports = {} if self.runtime.fault(slot) else self.runtime.reports(slot)
        journal, fault = self.runtime.journal(slot), self.runtime.fault(slot)
        error = None if fault is None else fault.error()
        completion = Completion(
            index=journal.sequence.index,
            token_ids=tuple(journal.token_ids),
            text=self.vocabulary.decode(journal.token_ids).decode(errors="replace"),
            finish_reason=reason if error is None else reason_of(error),
            error=error,
            strategy=self.runtime.strategy(slot),
            unenforced=self.runtime.unenforced(slot),
            losses=self.runtime.losses(slot),
            reports=reports,
            logprobs=None if journal.request.params.logprobs is None else tuple(self.logprobs[slot]),
        )
        self.results[slot] = GenerationResult(request_id=journal.request.request_id, outputs=(completion,))
        self.runtime.release(slot)
        del self.tokens[slot]
        self.requests.pop(slot, None)


def reason_of(error: GuidewayError) -> FinishReason:
    """Return the finish reason of a request that ends with `error`."""
    return FinishReason.REFUSED if isinstance(error, InvalidRequest) else FinishReason.INTERNAL_ERROR
