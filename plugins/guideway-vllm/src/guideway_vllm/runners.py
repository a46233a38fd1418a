"""The places in vLLM's two model runners where the logits are available between forward pass and draw."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeAlias

import torch

from guideway_vllm.steps import ATTRIBUTE, GuestOutput, GuestStep
from guideway_vllm.wrapping import find, lacks, wrap

__all__ = ["Act", "Seams", "V1Seams", "V2Seams"]

Act: TypeAlias = Callable[[GuestStep, Any, Callable[[Any], Any], Mapping[str, int]], tuple[Any, GuestOutput | None]]
"""Type of `guideway_vllm.worker.GuestWorker.act`."""


class Seams(ABC):
    """The changed places of one model runner, which call `act` with the logits around its draw."""

    needed: ClassVar[Mapping[str, Sequence[str]]]
    """Attributes that the runner must have; for methods, the parameters relied on."""
    fields: ClassVar[Mapping[str, Sequence[str]]]
    """Fields that are read from vLLM's own classes."""
    replaced: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Methods of vLLM that guideway replaces, with all their parameters, in order."""
    inner: ClassVar[str]
    """Attribute of a pending output that holds its final message."""

    def __init__(self, runner: Any, act: Act) -> None:
        self._runner = runner
        self._act = act

    @classmethod
    def missing(cls, runner: Any) -> list[str]:
        """Return the names of missing parts of the runner and of vLLM's classes around it."""
        lacking = [_signature(name, given) for name, given in cls.needed.items() if not _has(runner, name, given)]
        for path, names in cls.fields.items():
            has = getattr(find(path), "__annotations__", {})
            lacking += [f"{path}.{name}" for name in names if name not in has]
        return lacking + [_signature(path, names) for path, names in cls.replaced.items() if _parameters(path) != names]

    @abstractmethod
    def sample(self, sample_tokens: Callable[[Any], Any], grammar_output: Any) -> tuple[Any, GuestOutput | None]:
        """Run vLLM's draw of a step, and return its result and guideway's output."""


class V1Seams(Seams):
    """Places of the V1 runner. It computes logits in ``execute_model`` and draws in ``sample_tokens``; in between,
    logits and hidden states are in its ``execute_model_state``."""

    needed: ClassVar = {
        "execute_model": ("scheduler_output",),
        "execute_model_state": (),
        "load_model": (),
        "sample_tokens": ("grammar_output",),
    }
    fields: ClassVar = {
        "vllm.v1.worker.gpu_model_runner:ExecuteModelState": ("scheduler_output", "logits", "sample_hidden_states")
    }
    inner = "_model_runner_output"

    def __init__(self, runner: Any, act: Act) -> None:
        super().__init__(runner, act)
        if lacks(EXPAND, ("x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to")) is None:
            wrap(EXPAND, _around_expand)
        if lacks(CONSTRAIN, ("logits", "cu_num_draft_tokens", "sampling_metadata")) is None:
            wrap(CONSTRAIN, _around_constrain)

    def sample(self, sample_tokens: Callable[[Any], Any], grammar_output: Any) -> tuple[Any, GuestOutput | None]:
        with _rewindable(self._runner):
            return self._sample(sample_tokens, grammar_output)

    def _sample(self, sample_tokens: Callable[[Any], Any], grammar_output: Any) -> tuple[Any, GuestOutput | None]:
        runner, step = self._runner, getattr(grammar_output, ATTRIBUTE, None)
        state = runner.execute_model_state
        if step is None or state is None:
            return sample_tokens(grammar_output), None
        drafts = state.scheduler_output.scheduled_spec_decode_tokens
        first: dict[str, int] = {}
        row = 0
        for request_id in runner.input_batch.req_ids:
            first[request_id] = row
            row += 1 + len(drafts.get(request_id, ()))
        logits, output = self._act(step, state.logits, lambda rows: state.sample_hidden_states[rows], first)
        if logits is not state.logits:
            runner.execute_model_state = state._replace(logits=logits)
        rewound = _generators(runner, step.late)
        result = sample_tokens(None)
        for generator, before in rewound:  # the draw is discarded and repeated later
            generator.set_state(before)
        return result, output


class V2Seams(Seams):
    """Places of the V2 runner. It computes logits in ``sample`` and lets its ``structured_outputs_worker`` mask them in
    place, before its sampler draws or its rejection sampler verifies drafts. guideway replaces that worker for its
    steps, and each of several ranks draws all rows. Draws need no rewinding: they are functions of seed and
    position."""

    needed: ClassVar = {
        "batch_sharder": (),
        "execute_model": ("scheduler_output",),
        "load_model": (),
        "sample": ("hidden_states", "input_batch", "grammar_output"),
        "sample_tokens": ("grammar_output",),
        "structured_outputs_worker": (),
    }
    fields: ClassVar = {"vllm.v1.worker.gpu.input_batch:InputBatch": ("req_ids", "cu_num_logits_np", "logits_indices")}
    replaced: ClassVar = {
        "vllm.v1.worker.gpu.structured_outputs:StructuredOutputsWorker.apply_grammar_bitmask": (
            "logits",
            "input_batch",
            "grammar_req_ids",
            "grammar_bitmask",
        )
    }
    inner = "model_runner_output"

    def __init__(self, runner: Any, act: Act) -> None:
        super().__init__(runner, act)
        self._output: GuestOutput | None = None
        self._sample = runner.sample
        runner.sample = self._sample_with_guest

    def sample(self, sample_tokens: Callable[[Any], Any], grammar_output: Any) -> tuple[Any, GuestOutput | None]:
        self._output = None
        return sample_tokens(grammar_output), self._output

    def _sample_with_guest(self, hidden_states: Any, input_batch: Any, grammar_output: Any) -> Any:
        step = getattr(grammar_output, ATTRIBUTE, None)
        if step is None:
            return self._sample(hidden_states, input_batch, grammar_output)
        self._output = GuestOutput(failure="vLLM drew the tokens of a step without asking for its masks")
        runner = self._runner
        replaced = runner.structured_outputs_worker, runner.batch_sharder
        runner.structured_outputs_worker, runner.batch_sharder = _Masking(self, step, hidden_states), None
        try:
            return self._sample(hidden_states, input_batch, grammar_output)
        finally:
            runner.structured_outputs_worker, runner.batch_sharder = replaced

    def mask(self, step: GuestStep, hidden_states: Any, logits: Any, input_batch: Any) -> None:
        """Change `logits` in place."""
        first = dict(zip(input_batch.req_ids, input_batch.cu_num_logits_np.tolist(), strict=False))
        shaped, self._output = self._act(
            step, logits, lambda rows: hidden_states[input_batch.logits_indices[rows]], first
        )
        if shaped is not logits:
            logits.copy_(shaped)


class _Masking:
    """Replaces vLLM's ``StructuredOutputsWorker`` in one step."""

    def __init__(self, seams: V2Seams, step: GuestStep, hidden_states: Any) -> None:
        self._seams, self._step, self._hidden_states = seams, step, hidden_states

    def apply_grammar_bitmask(self, logits: Any, input_batch: Any, request_ids: Any, bitmask: Any) -> None:
        self._seams.mask(self._step, self._hidden_states, logits, input_batch)


EXPAND = "vllm.v1.sample.rejection_sampler:expand_batch_to_tokens"
"""Function that gives each draft the temperature, top-k and top-p of its request."""


def _around_expand(expand: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement on CPUs, where vLLM 0.32 has a kernel that writes into a copy: it returns uninitialised
    memory, and drafts above temperature 0 are verified with arbitrary temperatures."""

    def expanded(x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0) -> Any:
        if x.device.type != "cpu":
            return expand(x, cu_num_tokens, num_tokens, replace_from, replace_to)
        replaced = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
        counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        return replaced.repeat_interleave(counts, output_size=num_tokens)

    return expanded


CONSTRAIN = "vllm.v1.sample.rejection_sampler:apply_sampling_constraints"
"""Function that applies temperature, top-k and top-p to the logits of drafts."""


def _around_constrain(constrain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement that skips steps without drafts. In these vLLM 0.32, with a top-k and no top-p on a CPU,
    would take the maximum of an empty tensor, which ends the worker."""

    def constrained(logits: Any, cu_num_draft_tokens: Any, sampling_metadata: Any) -> Any:
        return constrain(logits, cu_num_draft_tokens, sampling_metadata) if len(logits) else logits

    return constrained


class _DiscardedGenerator(torch.Generator):
    """A generator for discarded draws, in the place of one that vLLM would rewind by its offset."""

    def get_offset(self) -> int:
        return 0

    def set_offset(self, offset: int) -> torch.Generator:
        """Ignore the offset, which CPU generators do not have."""
        return self


@contextmanager
def _rewindable(runner: Any) -> Iterator[None]:
    """Replace generators during vLLM's draw of a step. For a seeded request whose prompt is only partly computed, as
    after preemption, vLLM draws too and then rewinds the generator by its offset. A CPU generator has none, which would
    end the worker."""
    generators, mask = runner.input_batch.generators, getattr(runner, "discard_request_mask", None)
    if not generators or mask is None or runner.device.type != "cpu":
        yield
        return
    unfinished = mask.np[: runner.input_batch.num_reqs].nonzero()[0].tolist()
    kept = {i: generators[i] for i in unfinished if i in generators}
    generators.update({i: _DiscardedGenerator() for i in kept})
    try:
        yield
    finally:
        generators.update(kept)


def _has(runner: Any, name: str, parameters: Sequence[str]) -> bool:
    if not hasattr(runner, name):
        return False
    return not parameters or set(parameters) <= inspect.signature(getattr(runner, name)).parameters.keys()


def _parameters(path: str) -> tuple[str, ...] | None:
    """Return the parameters of a method, without the first."""
    method = find(path)
    return None if method is None else tuple(inspect.signature(method).parameters)[1:]


def _signature(name: str, parameters: Sequence[str]) -> str:
    return f"{name}({', '.join(parameters)})" if parameters else name


def _generators(runner: Any, request_ids: Sequence[str]) -> list[tuple[Any, Any]]:
    """Return the generators of seeded requests, each with its current state."""
    found = [request.generator for name in request_ids if (request := runner.requests.get(name)) is not None]
    return [(generator, generator.get_state()) for generator in found if generator is not None]
