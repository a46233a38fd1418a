"""A step taken stage by stage: whatever acts on it, each transform isolated, and the draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import token_lists
from guideway.api.errors import ConformanceError, contain
from guideway.api.modifier import LogitModifier, LogitTransform, Sampler
from guideway.api.steps import (
    GRAMMAR_MASK,
    Array,
    Fault,
    Payload,
    Stage,
    StepInput,
    StepOutput,
)
from guideway.pipeline.padding import Padding, padded_step
from guideway.pipeline.view import DRAW, StepData, StepView
from guideway.pipeline.warping import Pairs, banned, filtered, filters, penalized, widened

if TYPE_CHECKING:
    from guideway.pipeline.pipeline import Pipeline

__all__ = ["BANS", "Entry", "Lost", "StagedStep"]

BANS = ("min_tokens", "logit_bias")
"""The sampling parameters that may ban tokens."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A modifier's class, and its transform in this worker."""

    modifier: type[LogitModifier[Any]]
    transform: LogitTransform

    @property
    def name(self) -> str:
        return self.modifier.name


class Lost(Exception):
    """The logits of a step are gone, and nobody can tell whose fault it is: every row fails."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class StagedStep:
    """One step's passage through the stages, over `size` rows of logits."""

    def __init__(self, pipeline: Pipeline, step: StepInput, size: int, hidden_states: Array | None) -> None:
        self.pipeline = pipeline
        self.device = pipeline.device
        self.ops = pipeline.ops
        self.num_rows = step.batch.num_rows
        self.pre_warp, self.mask, self.post_warp, self.owners = (pipeline.entries(stage, step) for stage in Stage)
        mask = step.payloads.get(GRAMMAR_MASK)
        self.padding: Padding | None = None
        if self.device.static_shapes:
            self.padding = Padding(size, pipeline.context.logits_width)
            step = padded_step(step, 2 * size)
            mask = mask and self.padding.payload(mask)
            hidden_states = None if hidden_states is None else self._with_scratch(hidden_states)
        self.step = step
        self.data = StepData(step, self.ops, pipeline.context.logits_width, hidden_states, mask)
        self.all_rows = pipeline.all_rows(step.batch.num_rows)
        self.faults: dict[int, Fault] = {}
        self.emitted: dict[str, list[tuple[NDArray[np.int32], dict[str, Array]]]] = {}
        self.downloads: dict[str, Array] = {}
        self.rescued: dict[str, list[tuple[Entry, Payload]]] = {}
        """By name of a download that says which rows were left empty: the modifiers that may have done it."""
        self.banned: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        """Rows with bans; the download ``banned`` says which of them were left empty."""

    def run(self, logits: Array) -> StepOutput:
        ops = self.ops
        logprobs = self.pipeline.raw_logprobs(logits, self.step.num_logprobs, self.padding)
        if self.padding is not None:
            logits = self._with_scratch(logits)
        drawn = self._drawn()
        logits = self._warped(logits, drawn)
        if len(drawn) or self.post_warp or self.owners:
            logits = self._distribution(logits, len(drawn) > 0)
        if self.post_warp:
            before = ops.gather(logits, self.all_rows)
            for entry, payload in self.post_warp:
                logits = self._apply(entry, payload, logits)
            logits = self._rescue_empty_rows(self.pipeline.forbid_padding(logits), before, self.post_warp)
            if self.owners:
                logits = ops.log_softmax(logits)
        greedy = self._most_likely(logits)
        self.downloads["greedy"] = greedy
        self.downloads["best"] = ops.gather(logits, self.all_rows, greedy[:, None])[:, 0]
        chosen: list[tuple[NDArray[np.int32], Array]] = [(np.arange(self.num_rows, dtype=np.int32), greedy)]
        if len(drawn):
            ids = self._draw(logits, ops.asarray(drawn))
            if self.padding is not None:  # of every row, those that are not drawn among them
                cold = ops.asarray(self.step.temperatures <= 0)
                ids = ops.where_rows(ids[:, None], self.all_rows, cold[:, None], greedy[:, None])[:, 0]
                drawn = drawn[: self.num_rows]
            self.downloads["drawn"] = ids
            chosen.append((drawn, ids))
        owned: list[tuple[Entry, NDArray[np.int32]]] = []
        for entry, payload in self.owners:
            for owned_rows, ids in self._sample(entry, payload, logits):
                self.downloads[f"owned/{len(owned)}"] = ids
                owned.append((entry, owned_rows))
                chosen.append((owned_rows, ids))
        if logprobs is not None:
            for some_rows, ids in chosen:
                logprobs.choose(some_rows, ids)
            self.downloads |= logprobs.downloads
        host = self._downloaded()
        token_ids = self._token_ids(host, drawn, owned)
        return StepOutput(
            token_ids,
            self._feedback(host),
            self.faults,
            self._overruled(host),
            None if logprobs is None else logprobs.result(host),
        )

    def mask_only(self, logits: Array) -> tuple[Array, StepOutput]:
        """The stages up to the mask: the logits, and what is to be said of them."""
        size = len(logits)
        if self.padding is not None:
            logits = self._with_scratch(logits)
        logits = self._allowed(logits)[:size]
        self.downloads["best"] = self.ops.gather(logits, self.all_rows, self._most_likely(logits)[:, None])[:, 0]
        host = self._downloaded()
        self._check_drawable(host["best"][: self.num_rows])
        no_tokens = np.zeros(self.num_rows, dtype=np.int32)
        return logits, StepOutput(no_tokens, self._feedback(host), self.faults, self._overruled(host))

    def _downloaded(self) -> Mapping[str, NDArray[Any]]:
        """What all of it came to, and with it what failed on the device without anybody waiting."""
        for name, parts in self.emitted.items():
            for i, (_, arrays) in enumerate(parts):
                self.downloads |= {f"feedback/{name}/{i}/{key}": array for key, array in arrays.items()}
        try:
            return self.device.download(self.downloads).result()
        except BaseException as error:
            contain(error)
            raise Lost(Fault.of(f"device.{self.device.name}", "download", error)) from error

    def _with_scratch(self, x: Array) -> Array:
        """A copy of `x` with as many rows again."""
        size = len(x)
        rows = np.concatenate([np.arange(size, dtype=np.int32), np.zeros(size, dtype=np.int32)])
        return self.ops.gather(x, self.ops.asarray(rows))

    def _drawn(self) -> NDArray[np.int32]:
        """The rows that are drawn by temperature; with static shapes all, where any is."""
        drawn = np.flatnonzero(self.step.temperatures > 0).astype(np.int32)
        return np.arange(len(self.all_rows), dtype=np.int32) if self.padding is not None and len(drawn) else drawn

    def _draw(self, logits: Array, rows: Array) -> Array:
        """One token for each of `rows` from its log-probabilities, by the method the device draws by."""
        ops = self.ops
        logprobs = ops.gather(logits, rows)
        if "masked_sample" not in self.device.fused:
            return ops.categorical(logprobs, self.data.uniform(DRAW, rows, 1)[:, 0])
        u = self.data.uniform(DRAW, rows, self.pipeline.context.logits_width)
        return ops.argmax(logprobs - ops.log(0 - ops.log(u)))

    def _warped(self, logits: Array, drawn: NDArray[np.int32]) -> Array:
        """`logits` under every mask, with penalties, bias and temperature."""
        temperatures = self.step.temperatures[drawn]
        warm = drawn[(temperatures > 0) & (temperatures != 1)]
        if self._in_one_pass(warm):
            return self._warp_masked(logits)
        logits = self._penalized(self._allowed(logits))
        if not len(warm):
            return logits
        rows = warm if self.padding is None else drawn
        factors = self._factors(rows)
        return self.ops.scale_rows(widened(self.ops, logits), self.ops.asarray(rows), self.ops.asarray(factors))

    def _factors(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """One over the temperature of each of `rows`; 1 where it is 0."""
        temperatures = self.step.temperatures[rows]
        return (1 / np.where(temperatures > 0, temperatures, 1)).astype(np.float32)

    def _in_one_pass(self, warm: NDArray[np.int32]) -> bool:
        """Whether `warp_masked` does all there is to do between raw logits and filters, and more than the mask."""
        warp = self.step.warp
        added = None if warp is None else warp.added
        return (
            "warp_masked" in self.device.fused
            and not self.pre_warp
            and [entry.name for entry, _ in self.mask] == [GRAMMAR_MASK]
            and (warp is None or warp.repeated is None)
            and (added is None or not np.isneginf(added[2]).any())
            and (added is not None or len(warm) > 0)
        )

    def _warp_masked(self, logits: Array) -> Array:
        """In one pass. It may fail with the logits gone, and then every row of this step fails with it."""
        asarray, ((_, payload),) = self.ops.asarray, self.mask
        added = None if self.step.warp is None else self.step.warp.added
        if added is not None and self.padding is not None:
            added = self.padding.pairs(added)
        factors = np.ones(len(logits), dtype=np.float32)
        factors[: len(self.all_rows)] = self._factors(np.arange(len(self.all_rows), dtype=np.int32))
        try:
            mask = self._uploaded(payload)
            triples = None if added is None else (asarray(added[0]), asarray(added[1]), asarray(added[2]))
            logits = self.device.warp_masked(logits, mask.arrays["bitmask"], mask.rows, triples, asarray(factors))
        except BaseException as error:
            contain(error)
            raise Lost(Fault.of(f"device.{self.device.name}", "warp_masked", error)) from error
        return self.pipeline.forbid_padding(logits)

    def _uploaded(self, payload: Payload) -> Payload:
        return self.device.upload(payload if self.padding is None else self.padding.payload(payload))

    def _rows(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        return rows if self.padding is None else self.padding.rows(rows)

    def _penalized(self, logits: Array) -> Array:
        """`logits` with penalties, bias and bans. Where bans leave a row empty, it has penalties and bias alone."""
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
            logits, self.downloads["banned"] = banned(ops, logits, *places[:2], self._rows(self.banned))
        return logits

    def _pairs(self, pairs: Pairs) -> Pairs:
        return pairs if self.padding is None else self.padding.pairs(pairs)

    def _distribution(self, logits: Array, drawn: bool) -> Array:
        """`logits` through the filters: log-probabilities, where somebody looks at them."""
        ops, warp = self.ops, self.step.warp
        logits = ops.log_softmax(logits)
        if warp is None or not drawn:
            return logits
        chosen = filters(warp, self.step.temperatures[: self.num_rows] > 0, self.pipeline.context.logits_width)
        for one in chosen:
            logits = filtered(ops, logits, one if self.padding is None else self.padding.filter(one))
        if chosen and (self.post_warp or self.owners):
            logits = ops.log_softmax(logits)
        return logits

    def _allowed(self, logits: Array) -> Array:
        """Raw logits through `pre_warp` and the mask. Where that leaves a row empty, the grammar wins: raw, masked."""
        others = [*self.pre_warp, *(pair for pair in self.mask if pair[0].name != GRAMMAR_MASK)]
        raw = self.ops.gather(logits, self.all_rows) if others else None
        for entry, payload in self.pre_warp:
            logits = self._apply(entry, payload, logits)
        for entry, payload in self.mask:
            logits = self._apply(entry, payload, logits)
        logits = self.pipeline.forbid_padding(logits)
        if raw is None:
            return logits
        raw = self.pipeline.forbid_padding(raw)
        for entry, payload in self.mask:
            if entry.name == GRAMMAR_MASK:
                raw = self._apply(entry, payload, raw)
        return self._rescue_empty_rows(logits, raw, others)

    def _rescue_empty_rows(self, x: Array, otherwise: Array, by: list[tuple[Entry, Payload]]) -> Array:
        """`x` with its rows of -inf alone taken from `otherwise`, which has sampled rows only."""
        rows = self.all_rows
        best = self.ops.gather(x, rows, self.ops.argmax(x)[: len(rows), None])
        empty = best == -np.inf
        name = f"empty/{len(self.rescued)}"
        self.downloads[name], self.rescued[name] = empty[:, 0], by
        return self.ops.where_rows(x, rows, empty, otherwise)

    def _token_ids(
        self, host: Mapping[str, NDArray[Any]], drawn: NDArray[np.int32], owned: list[tuple[Entry, NDArray[np.int32]]]
    ) -> NDArray[np.int32]:
        num_tokens = self.pipeline.context.vocabulary_size
        token_ids = np.array(host["greedy"][: self.num_rows], dtype=np.int64)
        if len(drawn):
            token_ids[drawn] = host["drawn"][: len(drawn)]
        owner: dict[int, str] = {}
        for i, (entry, rows) in enumerate(owned):
            token_ids[rows] = host[f"owned/{i}"][: len(rows)]
            owner |= dict.fromkeys(rows.tolist(), entry.name)
        self._check_drawable(host["best"][: self.num_rows])
        outside = (token_ids < 0) | (token_ids >= num_tokens)
        for row in np.flatnonzero(outside).tolist():
            message = f"it drew a token id outside 0..{num_tokens - 1}"
            owned_by = owner.get(row)
            fault = Fault(f"modifier.{owned_by}", "sample", message) if owned_by else self._blame(row, message)
            self.faults.setdefault(row, fault)
        if self.faults:
            token_ids[list(self.faults)] = 0
        return token_ids.astype(np.int32)

    def _most_likely(self, logits: Array) -> Array:
        """The most likely token of each sampled row; in one that has NaN, the first of these."""
        return self.ops.argmax(logits)[: len(self.all_rows)]

    def _check_drawable(self, best: NDArray[Any]) -> None:
        """A row is at fault whose best value, of `best`, is none to draw."""
        for row in np.flatnonzero(~(best > -np.inf)).tolist():  # true for NaN
            message = "the logits are not numbers (NaN)" if np.isnan(best[row]) else "no token has a probability"
            self.faults.setdefault(row, self._blame(row, message))

    def _blame(self, row: int, message: str) -> Fault:
        """A row that cannot be drawn is the model's doing, unless modifiers acted on it."""
        others = (*self.pre_warp, *self.mask, *self.post_warp)
        acted = [e.name for e, payload in others if e.name != GRAMMAR_MASK and row in payload.rows]
        return Fault(f"modifier.{acted[-1]}", "apply", message) if acted else Fault("model", "forward", message)

    def _overruled(self, host: Mapping[str, NDArray[Any]]) -> dict[int, tuple[str, ...]]:
        overruled: dict[int, tuple[str, ...]] = {}
        for name, by in self.rescued.items():
            for row in np.flatnonzero(host[name][: self.num_rows]).tolist():
                names = tuple(f"modifier.{entry.name}" for entry, payload in by if row in payload.rows)
                overruled[row] = (*overruled.get(row, ()), *names)
        if len(self.banned):
            for row in self.banned[host["banned"][: len(self.banned)]].tolist():
                overruled[row] = (*overruled.get(row, ()), *BANS)
        return overruled

    def _feedback(self, host: Mapping[str, NDArray[Any]]) -> dict[str, Payload]:
        feedback = {}
        for name, parts in self.emitted.items():
            rows = np.concatenate([rows for rows, _ in parts])
            arrays = {}
            for key, (_, dtype) in self.pipeline.emits[name].items():
                values = [host[f"feedback/{name}/{i}/{key}"][: len(rows)] for i, (rows, _) in enumerate(parts)]
                arrays[key] = np.concatenate(values).astype(dtype, subok=False)
            feedback[name] = Payload(rows, arrays)
        return feedback

    def _apply(self, entry: Entry, payload: Payload, logits: Array) -> Array:
        """`entry` applied to its rows; if it fails, applied row by row, leaving those alone it fails for."""
        ops = self.ops
        # the grammar mask is idempotent, so it needs no copy to go back to, unless what it is applied to is lost
        rows = before = None
        if self.device.donates:
            before = ops.gather(logits, self.pipeline.all_rows(len(logits)))
        elif entry.name != GRAMMAR_MASK:
            rows = ops.asarray(self._rows(payload.rows))
            before = ops.gather(logits, rows)
        try:
            return self._call(entry, payload, logits)
        except BaseException as error:
            contain(error)
            if before is not None:
                logits = before if rows is None else ops.where_rows(logits, rows, True, before)
            if len(payload) == 1:
                self.faults.setdefault(int(payload.rows[0]), self._fault(entry, error))
                return logits
        for row in payload.rows.tolist():
            logits = self._apply(entry, payload.take(np.array([row], dtype=np.int32)), logits)
        return logits

    def _call(self, entry: Entry, payload: Payload, logits: Array) -> Array:
        view = self._view(entry, payload)
        if entry.name == GRAMMAR_MASK and self.padding is None and "apply_token_lists" in self.device.fused:
            modified = self._apply_short_masks(logits, payload)
        else:
            modified = entry.transform.apply(logits, self._uploaded(payload), view)
        alike = isinstance(modified, type(logits)) and modified.dtype == logits.dtype
        if not alike or modified.shape != logits.shape or not is_writable(modified):
            raise ConformanceError(
                f"apply must return the logits, {describe(logits)}, as an array of its own; it returned "
                f"{describe(modified)}"
            )
        if self.device.donates:
            modified[:1]  # raises now, and names the culprit, if it returned what it gave away
        self._keep_emitted(entry, payload, view, type(logits))
        return modified

    def _apply_short_masks(self, logits: Array, mask: Payload) -> Array:
        """The mask's rows as lists of tokens, those as a bitmask that take fewer bytes so."""
        lists, short = token_lists(mask.arrays["bitmask"], self.pipeline.context.vocabulary_size)
        if short.any():
            logits = self.device.apply_token_lists(logits, lists, mask.rows[short])
        if not short.all():
            rest = self.device.upload(mask.take(mask.rows[~short]))
            logits = self.device.apply_bitmask(logits, rest.arrays["bitmask"], rest.rows)
        return logits

    def _sample(self, entry: Entry, payload: Payload, logprobs: Array) -> list[tuple[NDArray[np.int32], Array]]:
        try:
            view = self._view(entry, payload)
            uploaded = self._uploaded(payload)
            ids = cast("Sampler", entry.transform).sample(logprobs, uploaded, view)
            whole = isinstance(ids, type(logprobs)) and "int" in str(ids.dtype)
            if not whole or tuple(ids.shape) != (len(uploaded),):
                raise ConformanceError(
                    f"sample must return {len(uploaded)} whole numbers as a {type(logprobs).__name__}; it returned "
                    f"{describe(ids)}"
                )
            self._keep_emitted(entry, payload, view, type(logprobs))
            return [(payload.rows, ids)]
        except BaseException as error:
            contain(error)
            if len(payload) == 1:
                self.faults.setdefault(int(payload.rows[0]), Fault.of(f"modifier.{entry.name}", "sample", error))
                return []
        alone = [payload.take(np.array([row], dtype=np.int32)) for row in payload.rows.tolist()]
        return [part for one in alone for part in self._sample(entry, one, logprobs)]

    def _keep_emitted(self, entry: Entry, payload: Payload, view: StepView, array_type: type) -> None:
        for name, array in view.emitted.items():
            if not isinstance(array, array_type):
                raise ConformanceError(f"{name!r} was emitted as {describe(array)}, not as a {array_type.__name__}")
        if missing := view.emitted.keys() ^ entry.transform.emits.keys():
            raise ConformanceError(f"{entry.name!r} did not emit {', '.join(sorted(missing))}")
        if view.emitted:
            self.emitted.setdefault(entry.name, []).append((payload.rows, view.emitted))

    def _view(self, entry: Entry, payload: Payload) -> StepView:
        num_entries = len(payload) if self.padding is None else self.padding.num_rows
        return StepView(self.data, entry.modifier, entry.transform, num_entries)

    def _fault(self, entry: Entry, error: BaseException) -> Fault:
        if entry.name == GRAMMAR_MASK:
            return Fault.of(f"device.{self.device.name}", "apply_bitmask", error)
        return Fault.of(f"modifier.{entry.name}", "apply", error)


def describe(value: object) -> str:
    """What a wrong return value looks like, for an error message."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return f"a {type(value).__name__}"
    return f"a {type(value).__name__} of {getattr(value, 'dtype', '?')} and shape {tuple(shape)}"


def is_writable(array: Array) -> bool:
    """Whether a library that changes arrays in place could change this one; true where none does."""
    return bool(getattr(getattr(array, "flags", None), "writeable", True))
