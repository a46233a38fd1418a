"""Run a step stage by stage, with any modifiers, and draw tokens."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import allocate
from guideway.api.steps import Array, Fault, Payload, StepInput, StepOutput
from guideway.errors import contain
from guideway.pipeline.context import Entry, PipelineContext, by_slot
from guideway.pipeline.isolation import TransformRunner
from guideway.pipeline.logprobs import RowLogprobs, joined
from guideway.pipeline.padding import Padding, padded_step
from guideway.pipeline.recording import Recorder
from guideway.pipeline.view import DRAW, StepData
from guideway.pipeline.warping import Pairs, banned, filtered, filters, penalized, widened

__all__ = ["BANS", "StagedStep", "StepFailed"]

BANS = ("min_tokens", "logit_bias")
"""The sampling parameters that may ban tokens."""


class StepFailed(Exception):
    """The logits of a step are lost and the failing plugin is unknown: every row gets `fault`."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class StagedStep:
    """One step that is run stage by stage, on `size` rows of logits."""

    def __init__(self, context: PipelineContext, step: StepInput, size: int, hidden_states: Array | None) -> None:
        self.context = context
        self.device = context.device
        self.ops = context.ops
        self.num_rows = step.batch.num_rows
        self.pre_warp, self.mask, self.post_warp, self.samplers = context.acting(step)
        self.padding: Padding | None = None
        if self.device.static_shapes:
            self.padding = Padding(size, context.width)
            step = padded_step(step, 2 * size)
            hidden_states = None if hidden_states is None else self._with_scratch(hidden_states)
        self.step = step
        # not a bound method: a reference cycle would keep the arrays until garbage collection
        self._bitmask = partial(_bitmask, context, step, self.padding)
        self.data = StepData(step, self.ops, context.width, hidden_states, self._bitmask)
        self.transforms = TransformRunner(context, self.data, self.padding)
        self.faults = self.transforms.faults
        self.all_rows = context.all_rows(step.batch.num_rows)
        self.normalized = False
        """True if the logits are log-probabilities."""
        self.recorder: Recorder | None = None
        self.downloads: dict[str, Array] = {}
        self.rescued: dict[str, list[tuple[Entry, Payload]]] = {}
        """The modifiers that may have emptied rows, by the name of the download that marks these rows."""
        self.banned: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        """Rows with bans; the download ``banned`` marks those that were empty."""

    def run(self, logits: Array) -> StepOutput:
        ops = self.ops
        raw = self.context.logprobs(logits, self.step, self.padding, processed=False)
        if self.step.records is not None:
            self.recorder = Recorder(self.context, self.step, logits, self.padding)
        if self.padding is not None:
            logits = self._with_scratch(logits)
        drawn = self._rows_to_draw()
        logits = self._warp(logits, drawn)
        if self.recorder is not None and not self.recorder.is_counted:
            self.recorder.measure(logits)
        if len(drawn) or self.post_warp or self.samplers:
            logits = self._distribution(logits, len(drawn) > 0)
        if self.post_warp:
            logits, self.normalized = self._modify(logits, self.post_warp), False
            if self.samplers:
                logits, self.normalized = ops.log_softmax(logits), True
        processed = self.context.logprobs(logits, self.step, self.padding, processed=True, normalized=self.normalized)
        if self.recorder is not None:
            self.recorder.finish(logits, normalized=self.normalized, is_kept=not self.samplers)
        greedy = self._most_likely(logits)
        self.downloads["greedy"] = greedy
        self.downloads["largest"] = ops.gather(logits, self.all_rows, greedy[:, None])[:, 0]
        chosen: list[tuple[NDArray[np.int32], Array]] = []
        if len(drawn) < self.num_rows:
            chosen.append((np.arange(self.num_rows, dtype=np.int32), greedy))
        if len(drawn):
            ids = self._draw(logits, ops.asarray(drawn))
            if self.padding is not None:  # ids of all rows; greedy ones are replaced
                is_greedy = ops.asarray(self.step.temperatures <= 0)
                ids = ops.where_rows(ids[:, None], self.all_rows, is_greedy[:, None], greedy[:, None])[:, 0]
                drawn = drawn[: self.num_rows]
            self.downloads["drawn"] = ids
            chosen.append((drawn, ids))
        sampled: list[tuple[Entry, NDArray[np.int32]]] = []
        for entry, payload in self.samplers:
            for its_rows, ids in self.transforms.sample(entry, payload, logits):
                self.downloads[f"sampled/{len(sampled)}"] = ids
                sampled.append((entry, its_rows))
                chosen.append((its_rows, ids))
                if self.recorder is not None:
                    self.recorder.claim(entry, its_rows)
        logprobs = [each for each in (raw, processed) if each is not None]
        outputs: list[RowLogprobs | Recorder] = [*logprobs]
        if self.recorder is not None:
            outputs.append(self.recorder)
        for each in outputs:
            for some_rows, ids in chosen:
                each.choose(some_rows, ids)
            self.downloads |= each.downloads
        host = self._download()
        token_ids = self._token_ids(host, drawn, sampled)
        return StepOutput(
            token_ids,
            self.transforms.feedback(host),
            by_slot(self.step.batch, self.faults),
            self._find_overruled(host),
            joined([each.result(host) for each in logprobs]),
            None if self.recorder is None else self.recorder.result(host, self._find_ineffective(host)),
        )

    def mask_only(self, logits: Array) -> tuple[Array, StepOutput]:
        """Run the stages up to the mask. Return the logits and the output."""
        size = len(logits)
        if self.padding is not None:
            logits = self._with_scratch(logits)
        logits = self._modify(logits, [*self.pre_warp, *self.mask])[:size]
        self.downloads["largest"] = self.ops.gather(logits, self.all_rows, self._most_likely(logits)[:, None])[:, 0]
        host = self._download()
        self.context.check_drawable(self.step, host["largest"][: self.num_rows], self.faults)
        no_tokens, faults = np.zeros(self.num_rows, dtype=np.int32), by_slot(self.step.batch, self.faults)
        return logits, StepOutput(no_tokens, self.transforms.feedback(host), faults, self._find_overruled(host))

    def _download(self) -> Mapping[str, NDArray[Any]]:
        """Download all results. Raises `StepFailed` for asynchronous failures on the device."""
        try:
            return self.device.download(self.downloads | self.transforms.downloads()).result()
        except BaseException as error:
            contain(error)
            raise StepFailed(Fault.of(f"device.{self.device.name}", "download", error)) from error

    def _with_scratch(self, x: Array) -> Array:
        """Return a copy of `x` with as many scratch rows as it has rows."""
        size = len(x)
        rows = np.concatenate([np.arange(size, dtype=np.int32), np.zeros(size, dtype=np.int32)])
        return self.ops.gather(x, self.ops.asarray(rows))

    def _rows_to_draw(self) -> NDArray[np.int32]:
        """Return the rows to draw with a temperature; with static shapes all rows if there are any."""
        drawn = np.flatnonzero(self.step.temperatures > 0).astype(np.int32)
        return np.arange(len(self.all_rows), dtype=np.int32) if self.padding is not None and len(drawn) else drawn

    def _draw(self, logits: Array, rows: Array) -> Array:
        """Draw one token for each of `rows` from its log-probabilities, by the same method as the device's
        `masked_sample`, if it has one."""
        ops = self.ops
        logprobs = ops.gather(logits, rows)
        if "masked_sample" not in self.device.fused:
            return ops.categorical(logprobs, self.data.uniform(DRAW, rows, 1)[:, 0])
        u = self.data.uniform(DRAW, rows, self.context.width)
        return ops.argmax(logprobs - ops.log(0 - ops.log(u)))

    def _warp(self, logits: Array, drawn: NDArray[np.int32]) -> Array:
        """Apply modifiers up to the mask, penalties, bias and temperature to `logits`."""
        temperatures = self.step.temperatures[drawn]
        tempered = drawn[(temperatures > 0) & (temperatures != 1)]
        if self._in_one_pass(tempered):
            return self._warp_masked(logits)
        logits = self._modify(logits, [*self.pre_warp, *self.mask])
        if self.recorder is not None and self._is_forbidden_by_bitmasks():
            masked = None if self._draws_from_masked(self.recorder.rows) else logits
            self.recorder.count(self.context.bitmask(self.step), masked)
        logits = self._penalize(logits)
        if not len(tempered):
            return logits
        rows = tempered if self.padding is None else drawn
        factors = self._factors(rows)
        return self.ops.scale_rows(widened(self.ops, logits), self.ops.asarray(rows), self.ops.asarray(factors))

    def _is_forbidden_by_bitmasks(self) -> bool:
        """Return whether the logits after the mask are the model's, but for tokens that hard bitmasks forbid, and no
        token is banned."""
        added = None if self.step.warp is None else self.step.warp.added
        is_hard = all(entry.name in self.context.hard_bitmasks for entry, _ in self.mask)
        return not self.pre_warp and is_hard and (added is None or not np.isneginf(added[2]).any())

    def _draws_from_masked(self, rows: NDArray[np.int32]) -> bool:
        """Return whether `rows` are drawn from the distribution of the logits after the mask."""
        temperatures = self.step.temperatures[rows]
        is_warped = self.step.warp is not None or ((temperatures != 0) & (temperatures != 1)).any()
        return not (is_warped or self.post_warp or self.samplers)

    def _factors(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return one over the temperature of each of `rows`; 1 where it is 0."""
        temperatures = self.step.temperatures[rows]
        return (1 / np.where(temperatures > 0, temperatures, 1)).astype(np.float32)

    def _in_one_pass(self, tempered: NDArray[np.int32]) -> bool:
        """Return whether `warp_masked` can do everything before the filters, and there is more to do than the mask."""
        warp = self.step.warp
        added = None if warp is None else warp.added
        return (
            "warp_masked" in self.device.fused
            and not self.pre_warp
            and bool(self.mask)
            and all(entry.name in self.context.hard_bitmasks for entry, _ in self.mask)
            and (warp is None or warp.repeated is None)
            and (added is None or not np.isneginf(added[2]).any())
            and (added is not None or len(tempered) > 0)
        )

    def _warp_masked(self, logits: Array) -> Array:
        """Do `_warp` in one pass. A failure may lose the logits, so it fails every row of the step."""
        if self.recorder is not None:
            for entry, payload in self.mask:
                self.recorder.read_bitmask(entry, payload)
        asarray, mask = self.ops.asarray, self._bitmask()
        assert mask is not None  # `_in_one_pass`
        added = None if self.step.warp is None else self.step.warp.added
        if added is not None and self.padding is not None:
            added = self.padding.pairs(added)
        factors = np.ones(len(logits), dtype=np.float32)
        factors[: len(self.all_rows)] = self._factors(np.arange(len(self.all_rows), dtype=np.int32))
        try:
            mask = self.device.upload(mask)
            triples = None if added is None else (asarray(added[0]), asarray(added[1]), asarray(added[2]))
            logits = self.device.warp_masked(logits, mask.arrays["bitmask"], mask.rows, triples, asarray(factors))
        except BaseException as error:
            contain(error)
            raise StepFailed(Fault.of(f"device.{self.device.name}", "warp_masked", error)) from error
        return self.context.forbid_padding(logits)

    def _penalize(self, logits: Array) -> Array:
        """Apply penalties, bias and bans to `logits`. Bans are not applied to rows that they would leave empty."""
        ops, warp = self.ops, self.step.warp
        if warp is None or (warp.repeated is None and warp.added is None):
            return logits
        logits = widened(ops, logits)
        if warp.repeated is not None:
            logits = penalized(ops, logits, self._pairs(warp.repeated))
        if warp.added is None:
            return logits
        rows, columns, values = warp.added
        bans = np.isneginf(values)
        if not bans.all():
            finite = self._pairs((rows[~bans], columns[~bans], values[~bans]))
            logits = ops.add_at(logits, *map(ops.asarray, finite))
        if bans.any():
            self.banned = np.unique(rows[bans])
            places = self._pairs((rows[bans], columns[bans], values[bans]))
            concerned = self.banned if self.padding is None else self.padding.rows(self.banned)
            logits, self.downloads["banned"] = banned(ops, logits, *places[:2], concerned)
        return logits

    def _pairs(self, pairs: Pairs) -> Pairs:
        return pairs if self.padding is None else self.padding.pairs(pairs)

    def _distribution(self, logits: Array, drawn: bool) -> Array:
        """Apply the filters to `logits`. The result is log-probabilities, normalized if a later stage reads them."""
        ops, warp, recorder = self.ops, self.step.warp, self.recorder
        if recorder is not None and self._is_recorded_as_it_is(recorder):
            logits = recorder.model.values
        else:
            logits = ops.log_softmax(logits)
        self.normalized = True
        if warp is None or not drawn:
            return logits
        chosen = filters(warp, self.step.temperatures[: self.num_rows] > 0, self.context.width)
        for one in chosen:
            logits = filtered(ops, logits, one if self.padding is None else self.padding.filter(one))
        if chosen:
            self.normalized = bool(self.post_warp or self.samplers)
            if self.normalized:
                logits = ops.log_softmax(logits)
        return logits

    def _is_recorded_as_it_is(self, recorder: Recorder) -> bool:
        """Return whether every row is recorded, and drawn from the model's distribution."""
        is_whole = self.padding is None and len(recorder.rows) == self.num_rows
        return is_whole and not (self.pre_warp or self.mask) and self._draws_from_masked(recorder.rows)

    def _modify(self, logits: Array, acting: list[tuple[Entry, Payload]]) -> Array:
        """Apply transforms to `logits`. A row that they leave empty gets only the hard constraints."""
        soft = [pair for pair in acting if not pair[0].transform.hard]
        before = self.ops.gather(logits, self.all_rows) if soft else None
        for entry, payload in acting:
            logits = self._apply(entry, payload, logits)
        logits = self.context.forbid_padding(logits)
        if before is None:
            return logits
        before = self.context.forbid_padding(before)
        for entry, payload in acting:
            if entry.transform.hard:
                before = self.transforms.apply(entry, payload, before)
        return self._rescue_empty_rows(logits, before, soft)

    def _apply(self, entry: Entry, payload: Payload, logits: Array) -> Array:
        """Apply the transform of `entry` to `logits`, and record which rows it changed."""
        if self.recorder is None:
            return self.transforms.apply(entry, payload, logits)
        if entry.transform.bitmask is not None:
            self.recorder.read_bitmask(entry, payload)
            return self.transforms.apply(entry, payload, logits)
        before = self.recorder.copy(logits)
        logits = self.transforms.apply(entry, payload, logits)
        self.recorder.compare(entry, before, logits)
        return logits

    def _rescue_empty_rows(self, x: Array, otherwise: Array, by: list[tuple[Entry, Payload]]) -> Array:
        """Replace the empty rows of `x` (all -inf) by the same rows of `otherwise`, which has only the sampled
        rows."""
        rows = self.all_rows
        largest = self.ops.gather(x, rows, self.ops.argmax(x)[: len(rows), None])
        empty = largest == -np.inf
        name = f"empty/{len(self.rescued)}"
        self.downloads[name], self.rescued[name] = empty[:, 0], by
        return self.ops.where_rows(x, rows, empty, otherwise)

    def _token_ids(
        self, host: Mapping[str, NDArray[Any]], drawn: NDArray[np.int32], sampled: list[tuple[Entry, NDArray[np.int32]]]
    ) -> NDArray[np.int32]:
        token_ids = np.array(host["greedy"][: self.num_rows], dtype=np.int64)
        if len(drawn):
            token_ids[drawn] = host["drawn"][: len(drawn)]
        sampler: dict[int, str] = {}
        for i, (entry, rows) in enumerate(sampled):
            token_ids[rows] = host[f"sampled/{i}"][: len(rows)]
            sampler |= dict.fromkeys(rows.tolist(), entry.name)

        def blamed(row: int, message: str) -> Fault:
            if row in sampler:
                return Fault(f"modifier.{sampler[row]}", "sample", message)
            return self.context.blame_for(self.step, row, message)

        return self.context.checked(self.step, token_ids, host["largest"][: self.num_rows], self.faults, blamed)

    def _most_likely(self, logits: Array) -> Array:
        """Return the most likely token of each sampled row; in a row with NaN, the first NaN."""
        return self.ops.argmax(logits)[: len(self.all_rows)]

    def _find_ineffective(self, host: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.int32]]:
        """Return the rows that each modifier would have left empty, so that it did not act on them."""
        return {
            entry.name: np.intersect1d(np.flatnonzero(host[name][: self.num_rows]), payload.rows).astype(np.int32)
            for name, by in self.rescued.items()
            for entry, payload in by
        }

    def _find_overruled(self, host: Mapping[str, NDArray[Any]]) -> dict[int, tuple[str, ...]]:
        overruled: dict[int, tuple[str, ...]] = {}
        for name, by in self.rescued.items():
            for row in np.flatnonzero(host[name][: self.num_rows]).tolist():
                names = tuple(f"modifier.{entry.name}" for entry, payload in by if row in payload.rows)
                overruled[row] = (*overruled.get(row, ()), *names)
        if len(self.banned):
            for row in self.banned[host["banned"][: len(self.banned)]].tolist():
                overruled[row] = (*overruled.get(row, ()), *BANS)
        return overruled


def _bitmask(context: PipelineContext, step: StepInput, padding: Padding | None) -> Payload | None:
    """Return the combined bitmask of the step, padded if shapes are static."""
    mask = context.bitmask(step)
    if padding is None:
        return mask
    if mask is None:  # readers get the same shape in every step
        mask = Payload(np.empty(0, dtype=np.int32), {"bitmask": allocate(0, context.width)})
    return padding.payload(mask)
