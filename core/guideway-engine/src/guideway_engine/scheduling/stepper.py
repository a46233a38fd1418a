"""Running one step with workers and runtime: from planned work to final tokens."""

from __future__ import annotations

import time
from typing import Any

from guideway.api.provisional import Executor
from guideway.api.steps import StepBatch, fail
from guideway.runtime.runtime import Runtime

from guideway_engine.scheduling.kv_cache import KVCache
from guideway_engine.scheduling.outputs import DecodeOutputs, SequenceOutput
from guideway_engine.scheduling.steps import DecodeSteps, Work

__all__ = ["Stepper"]

RESTS = 0.005
"""Seconds to sleep after a step in which no sequence had its mask."""


class Stepper:
    """Runs a step: builds the forward pass, runs it on the workers, and lets the runtime accept the tokens. Sequences
    are not changed, except for the scores of their prompt."""

    def __init__(
        self, runtime: Runtime, executor: Executor, cache: KVCache, steps: DecodeSteps, outputs: DecodeOutputs
    ) -> None:
        self._runtime = runtime
        self._executor = executor
        self._cache = cache
        self._outputs = outputs
        self.steps = steps

    def run(self, works: list[Work]) -> list[SequenceOutput]:
        """Run one step and return the output of each sequence that samples. Raises the workers' errors."""
        sampled = [work for work in works if work.samples]
        scored = [work for work in works if work.num_scored]
        for work in sampled:
            work.sequence.in_step = True
        forward = self.steps.build(works)
        self._runtime.foresee({work.sequence.slots[0]: work.drafts for work in sampled})
        launched = self._executor.submit("forward", forward)
        step = batch = None
        if sampled:  # while the forward pass runs, if workers run in other processes
            sequences = [work.sequence for work in sampled]
            positions = [sequence.length(0) for sequence in sequences]
            batch = StepBatch.build([s.slots[0] for s in sequences], positions, [work.drafts for work in sampled])
            step = self._runtime.prepare(batch)
        sampling = self._executor.submit("sample", step)
        launched.result()
        outputs = sampling.results()
        output = outputs[0]
        # before the cache counts these tokens, because counted tokens are not scored again
        if forward.score is not None:
            self._outputs.keep_scores(scored, forward.score, output.prompt)
        self._cache.executed(forward.first_move + len(forward.moves))
        for work in works:
            for slot, token_ids in zip(work.sequence.slots, work.appends, strict=True):
                if token_ids:
                    self._cache.advance(slot, token_ids)
        failed = self._report_failed(works, outputs)
        if batch is None:
            return failed
        late = [self._runtime.is_late(work.sequence.slots[0]) for work in sampled]
        finals = self._outputs.final_tokens(sampled, late, batch, output.step.token_ids)
        if all(late):  # otherwise the next step would be too early again
            time.sleep(RESTS)
        outcomes = self._runtime.accept(batch, finals, output.step)
        logprobs = self._outputs.logprobs(sampled, finals, batch, output.step.logprobs)
        assert step is not None
        records = self._outputs.records(finals, step, output.step.records)
        return [
            SequenceOutput(work.sequence, ids, found, outcome, recorded)
            for work, ids, found, outcome, recorded in zip(sampled, finals, logprobs, outcomes, records, strict=True)
        ] + failed

    def _report_failed(self, works: list[Work], outputs: list[Any]) -> list[SequenceOutput]:
        """Report the sequences that a mixin of any worker refuses to continue to the runtime, which ends the sampling
        ones. Return failed outputs for the others."""
        faults = {slot: fault for output in outputs for slot, fault in output.step.faults.items() if fault.row < 0}
        found = []
        for work in works if faults else ():
            if (fault := faults.get(work.sequence.slots[0])) is not None:
                self._runtime.fail(work.sequence.slots[0], fault)
                if not work.samples:
                    found.append(SequenceOutput(work.sequence, (), [], fail(str(fault))))
        return found
