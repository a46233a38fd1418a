"""One step through workers and runtime: from what each sequence is to compute to its final tokens."""

from __future__ import annotations

import time
from typing import Any

from guideway.api.provisional import Executor
from guideway.api.steps import Fault, StepBatch, fail
from guideway.runtime.runtime import Runtime

from guideway_engine.scheduling.kv_cache import KVCache
from guideway_engine.scheduling.outputs import DecodeOutputs, SequenceOutput
from guideway_engine.scheduling.steps import DecodeSteps, Work

__all__ = ["Stepper"]

RESTS = 0.005
"""Seconds after a step that all its sequences sat out."""


class Stepper:
    """Leads a step from the step builder through workers and runtime to the output processor. It changes no sequence
    but by scores of its prompt."""

    def __init__(
        self, runtime: Runtime, executor: Executor, cache: KVCache, steps: DecodeSteps, outputs: DecodeOutputs
    ) -> None:
        self._runtime = runtime
        self._executor = executor
        self._cache = cache
        self._outputs = outputs
        self.steps = steps

    def run(self, works: list[Work]) -> list[SequenceOutput]:
        """The step; what those that sample have come to. Raises what the workers raise."""
        sampled = [work for work in works if work.samples]
        scored = [work for work in works if work.num_scored]
        for work in sampled:
            work.sequence.in_step = True
        forward = self.steps.build(works)
        self._runtime.foresee({work.sequence.slots[0]: work.drafts for work in sampled})
        launched = self._executor.submit("forward", forward)
        step = batch = None
        if sampled:  # beside the forward pass, where that runs elsewhere
            sequences = [work.sequence for work in sampled]
            positions = [sequence.length(0) for sequence in sequences]
            batch = StepBatch.build([s.slots[0] for s in sequences], positions, [work.drafts for work in sampled])
            step = self._runtime.prepare(batch)
        sampling = self._executor.submit("sample", step)
        launched.result()
        outputs = sampling.results()
        output = outputs[0]
        if forward.score is not None:  # before the cache counts their tokens: those that it has are not scored again
            self._outputs.keep_scores(scored, forward.score, output.prompt)
        self._cache.executed(forward.first_move + len(forward.moves))
        for work in works:
            for slot, token_ids in zip(work.sequence.slots, work.appends, strict=True):
                if token_ids:
                    self._cache.advance(slot, token_ids)
        failed = self._failed(works, outputs)
        if batch is None:
            return failed
        late = [self._runtime.is_late(work.sequence.slots[0]) for work in sampled]
        finals = self._outputs.final_tokens(sampled, late, batch, output.step.token_ids)
        if all(late):  # else the next step would come too early, too
            time.sleep(RESTS)
        outcomes = self._runtime.accept(batch, finals, output.step)
        logprobs = self._outputs.logprobs(sampled, finals, batch, output.step.logprobs)
        return [
            SequenceOutput(work.sequence, ids, found, outcome)
            for work, ids, found, outcome in zip(sampled, finals, logprobs, outcomes, strict=True)
        ] + failed

    def _failed(self, works: list[Work], outputs: list[Any]) -> list[SequenceOutput]:
        """Tell the runtime of sequences of which a mixin of any worker says that they cannot go on: it ends those that
        sample, and what is returned the others."""
        faults: dict[str, Fault] = {}
        for output in outputs:
            faults |= output.faults
        found = []
        for work in works if faults else ():
            if (fault := faults.get(work.sequence.id)) is not None:
                self._runtime.fail(work.sequence.slots[0], fault)
                if not work.samples:
                    found.append(SequenceOutput(work.sequence, (), [], fail(str(fault))))
        return found
