"""The runner: forward passes of a Llama in jax, compiled for a few shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from guideway.api import GuidewayError, InvalidConfiguration, padded_size
from guideway.api.forward import (
    Append,
    Copy,
    ForwardOutput,
    ForwardStep,
    ModelInfo,
    ModelRunner,
    Move,
    Region,
    RunnerLimits,
)
from numpy.typing import NDArray

from guideway_xla.device.devices import find_device
from guideway_xla.runner import llama
from guideway_xla.runner.llama import KEYS, Llama, Shape, Weights
from guideway_xla.runner.weights import load

__all__ = ["JaxRunner", "Model", "shapes_for"]

SMALL = 64
"""Steps of up to this many tokens are padded to a power of two, larger ones to a power of four."""
BLOCK_SIZE = 16
"""Maximum tokens of a block in larger steps. In small steps, mostly one token per sequence, it is one."""
MOST_SHAPES = 8
MOVED = 256
"""Cells that one move copies at once."""
ONE_TOKEN = Append(Region(0, 1), 0, [0], 1)
"""A step of one token, to compile the model with."""


@dataclass(frozen=True, slots=True)
class Model:
    """The model as worker mixins use it."""

    config: Llama
    weights: Weights


class JaxRunner(ModelRunner):
    """Runs a ``LlamaForCausalLM`` on the backend's device; if that belongs to another library, on jax's device of the
    same name.

    Nothing is compiled after `start`, except for prompts with log-probabilities: the first such prompt of each size.
    """

    contract = "1.0"
    name = "jax"
    model: Model

    def __init__(self, backend: Any, rank: int, num_workers: int) -> None:
        super().__init__(backend, rank, num_workers)
        if num_workers != 1:
            raise InvalidConfiguration(
                f"the runner 'jax' cannot share a model among {num_workers} workers; use one", field="executor"
            )
        self._device = find_device(backend.device)
        self._state: list[tuple[Any, ...]] = []
        """One entry: the last result of the function in `_run`, the cache first."""
        self._num_moves = 0
        self._shapes: list[Shape] = []
        self._limits: RunnerLimits

    def load(self, folder: str, dtype: str) -> ModelInfo:
        config, weights, info = load(folder, dtype, self._device)
        self.model = Model(config, weights)
        self._max_context = info.max_context
        return info

    def start(self, limits: RunnerLimits) -> None:
        if limits.max_length > (self._max_context or limits.max_length):
            raise InvalidConfiguration(
                f"max_length must be at most the model's context of {self._max_context}, not {limits.max_length}",
                field="max_length",
            )
        config, dtype = self.model.config, self.model.weights["embedding"].dtype
        sizes = (config.num_layers, limits.num_cells + KEYS, config.num_kv_heads, config.head_dim)
        try:
            keys, values = (jnp.zeros(sizes, dtype=dtype, device=self._device) for _ in range(2))
            self._state = [((keys.block_until_ready(), values.block_until_ready()),)]
        except jax.errors.JaxRuntimeError as error:
            raise InvalidConfiguration(
                f"no memory for the keys and values of {limits.num_cells} tokens: {error}", field="num_cells"
            ) from error
        self._limits = limits
        self._shapes = shapes_for(limits)
        # compiles everything, whether or not there is room for a step that fills its shape
        self._run(partial(llama.move, most=MOVED), *(np.int32(0) for _ in range(3)))
        for shape in self._shapes:
            self._pass([ONE_TOKEN], shape)

    def dummy_steps(self) -> Iterator[ForwardStep]:
        """Yield one step for each number of rows; `start` has compiled the rest."""
        for num_rows in sorted({shape.num_rows for shape in self._shapes}):
            yield ForwardStep([ONE_TOKEN] * num_rows)

    def forward(self, step: ForwardStep) -> ForwardOutput:
        self._carry_out(step.moves, step.first_move)
        self._pass(step.appends, self._shape(step))
        _, logits, hidden_states = self._state[0]
        return ForwardOutput(logits, hidden_states if step.hidden_states else None)

    def close(self) -> None:
        self._state = []

    def _run(self, function: Callable[..., Any], *inputs: Any) -> None:
        """Do ``self._state = [function(cache, *inputs)]`` atomically. `function` deletes the old cache, and an
        interrupt between its call and an assignment would lose the new one. A single statement that runs no Python code
        in between cannot be interrupted."""
        cache = self._state[0][0]
        self._state[:] = map(function, (cache,), *((one,) for one in inputs))

    def _pass(self, appends: Sequence[Append], shape: Shape) -> None:
        packed = _pack(appends, shape, nowhere=self._limits.num_cells + KEYS)
        self._run(
            partial(llama.forward, self.model.config, shape, self.model.weights),
            jax.device_put(packed, self._device),
        )

    def _carry_out(self, moves: Sequence[Move], first_move: int) -> None:
        if first_move > self._num_moves:
            raise GuidewayError(f"moves {self._num_moves} to {first_move - 1} of the KV cache never arrived")
        for one in moves[self._num_moves - first_move :]:
            self._move(one)
            # counted when done: after an interrupt the move is done twice, which changes nothing
            self._num_moves += 1

    def _move(self, one: Move) -> None:
        for done in range(0, one.num_tokens, MOVED):
            if isinstance(one, Copy):
                source, target = one.source + done, one.target + done
            else:
                source, target = -1, one.start + done
            count = min(MOVED, one.num_tokens - done)
            self._run(partial(llama.move, most=MOVED), *(np.int32(number) for number in (source, target, count)))

    def _shape(self, step: ForwardStep) -> Shape:
        """Return the smallest shape that the step fits into."""
        for shape in self._shapes:
            num_blocks = sum(-(-len(append.token_ids) // shape.block_size) for append in step.appends)
            if step.num_tokens <= shape.num_tokens and num_blocks <= shape.num_blocks:
                return shape if step.num_rows <= shape.num_rows else shape._replace(num_rows=shape.num_tokens)
        raise GuidewayError(
            f"a step has {step.num_tokens} tokens of {step.num_sequences} sequences; the runner was told of at most "
            f"{self._limits.max_num_tokens} tokens and {self._limits.max_num_rows} rows"
        )


def shapes_for(limits: RunnerLimits) -> list[Shape]:
    """Return at most `MOST_SHAPES` shapes, by size; the last fits any step within `limits` that has no more sequences
    than rows."""
    most = -(-min(limits.max_num_tokens, limits.num_cells) // BLOCK_SIZE) * BLOCK_SIZE
    sizes = [8]
    while sizes[-1] < most:
        sizes.append(min(sizes[-1] * (2 if sizes[-1] < SMALL else 4), most))
    sizes[MOST_SHAPES - 1 :] = sizes[-1:] if len(sizes) >= MOST_SHAPES else []
    most_rows = padded_size(limits.max_num_rows)
    shapes = []
    for size in sizes:
        num_rows = min(size, most_rows)
        if size <= SMALL:
            shapes.append(Shape(size, num_rows, num_blocks=size, block_size=1))
        else:
            # each sequence may have one incomplete block
            num_blocks = min(size, size // BLOCK_SIZE + num_rows)
            shapes.append(Shape(size, num_rows, num_blocks, BLOCK_SIZE))
    return shapes


def _pack(appends: Sequence[Append], shape: Shape, nowhere: int) -> NDArray[np.int32]:
    """Return `llama.Step` of `appends`; padding is written to the cell `nowhere`."""
    counts = np.array([len(append.token_ids) for append in appends])
    starts = np.array([append.region.start for append in appends])
    ends = np.cumsum(counts)
    num_tokens, size = int(ends[-1]), shape.block_size

    token = np.arange(num_tokens)
    within = token - np.repeat(ends - counts, counts)  # the token's index in its append
    positions = within + np.repeat([append.length for append in appends], counts)
    num_blocks = -(-counts // size)
    first_block = np.repeat(np.cumsum(num_blocks) - num_blocks, counts)
    rows = [np.arange(end - append.num_rows, end) for append, end in zip(appends, ends.tolist(), strict=True)]
    is_first = within % size == 0
    firsts = token[is_first]

    parts = (
        ([token_id for append in appends for token_id in append.token_ids], shape.num_tokens, 0),
        (positions, shape.num_tokens, 0),
        (positions + np.repeat(starts, counts), shape.num_tokens, nowhere),
        (first_block * size + within, shape.num_tokens, 0),
        (np.concatenate(rows), shape.num_rows, 0),
        (np.repeat(starts, num_blocks), shape.num_blocks, 0),
        (firsts, shape.num_blocks, 0),
        (np.minimum(size, (np.repeat(ends, num_blocks) - firsts)), shape.num_blocks, 0),
    )
    packed = np.empty(sum(room for _, room, _ in parts), dtype=np.int32)
    place = 0
    for values, room, filling in parts:
        packed[place : place + len(values)] = values
        packed[place + len(values) : place + room] = filling
        place += room
    return packed
