"""The runner computes the same as `transformers`, for any mix of prompts, parts of prompts, drafts and moves, and
compiles nothing after its start."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from guideway.api import GuidewayError, InvalidConfiguration
from guideway.api.forward import Append, Clear, Copy, ForwardStep, ModelInfo, Move, Region, RunnerLimits, Score
from guideway_demo_model import DemoModel
from guideway_xla.device.device import XlaDevice
from guideway_xla.runner.runner import MOST_SHAPES, JaxRunner, shapes_for
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

VOCABULARY_SIZE = 300
LIMITS = RunnerLimits(num_cells=2048, max_length=160, max_num_tokens=96, max_num_rows=12)
LARGEST = 256
"""Cells of a region that is large enough for any sequence."""
TOLERANCE = 1e-4

torch.set_num_threads(1)


def saved(folder: Path, **changes: Any) -> Path:
    """Save a Llama with random weights, large enough that logits spread over several units."""
    config = LlamaConfig(
        **{
            "vocab_size": VOCABULARY_SIZE,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 200,
            "eos_token_id": [7, 9],
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
            **changes,
        }
    )
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        parameter.data.copy_(1 + 0.3 * drawn if "norm" in name else 0.15 * drawn)
    model.save_pretrained(folder)
    return folder


def demo(_: Path) -> Path:
    return Path(DemoModel().path())


def runner_of(folder: Path, dtype: str = "float32", limits: RunnerLimits = LIMITS) -> JaxRunner:
    runner = JaxRunner(XlaDevice("cpu"), 0, 1)
    runner.load(str(folder), dtype)
    runner.start(limits)
    return runner


class Reference:
    """The same model in `transformers`, computed from scratch each time."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)

    def __call__(self, texts: Sequence[Sequence[int]]) -> list[np.ndarray[Any, Any]]:
        """Return for each text the logits of all of its tokens."""
        padded = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.int64)
        for row, text in zip(padded, texts, strict=True):
            row[: len(text)] = torch.tensor(text)
        with torch.inference_mode():
            logits = self.model(padded, use_cache=False).logits.float().numpy()  # padding does not affect a text
        return [row[: len(text)] for row, text in zip(logits, texts, strict=True)]


@dataclass
class Running:
    region: Region
    token_ids: list[int]


@dataclass
class Walk:
    """Random steps over sequences that join, grow into larger regions, fork, are truncated and leave."""

    runner: JaxRunner
    vocabulary_size: int
    rng: random.Random
    sequences: list[Running] = field(default_factory=list)
    free: list[int] = field(default_factory=lambda: list(range(0, LIMITS.num_cells, LARGEST)))
    moves: list[Move] = field(default_factory=list)
    num_moves: int = 0
    seen: set[str] = field(default_factory=set)

    def random_ids(self, count: int) -> list[int]:
        return [self.rng.randrange(self.vocabulary_size) for _ in range(count)]

    def change(self) -> None:
        rng, event = self.rng, self.rng.random()
        if self.free and (event < 0.3 or not self.sequences):
            # at the end of its cells, so that reading beyond them would be noticed
            size = rng.choice([64, 128, LARGEST])
            start = self.free.pop(rng.randrange(len(self.free)))
            self.sequences.append(Running(Region(start + LARGEST - size, size), []))
            return
        sequence = rng.choice(self.sequences)
        start = sequence.region.start // LARGEST * LARGEST
        if event < 0.4:
            self.sequences.remove(sequence)
            self.moves.append(Clear(start, LARGEST))
            self.free.append(start)
            self.seen.add("leave")
        elif event < 0.5 and self.free:
            target = self.free.pop()
            self.moves.append(Copy(sequence.region.start, target, len(sequence.token_ids)))
            self.sequences.append(Running(Region(target, LARGEST), list(sequence.token_ids)))
            self.seen.add("fork")
        elif event < 0.6:
            del sequence.token_ids[rng.randint(0, len(sequence.token_ids)) :]
            self.seen.add("cut")

    def step(self) -> tuple[ForwardStep, list[tuple[Running, list[int], int]]]:
        """Return the next step, and for each append its sequence, tokens and number of rows."""
        rng, chosen, tokens, rows = self.rng, [], LIMITS.max_num_tokens, LIMITS.max_num_rows
        for sequence in rng.sample(self.sequences, len(self.sequences)):
            room = min(sequence.region.size, LIMITS.max_length) - len(sequence.token_ids)
            count = min(rng.choice([1, 1, 1, 2, 5, 17, 40, 90]), room, tokens)
            if count < 1 or not rows or rng.random() < 0.2:
                continue
            num_rows = min(rng.choice([0, 1, 1, 4]), count, rows)
            chosen.append((sequence, self.random_ids(count), num_rows))
            tokens, rows = tokens - count, rows - num_rows
            self.seen.add(f"{count} tokens, {num_rows} rows")
        appends = [Append(s.region, len(s.token_ids), token_ids, rows) for s, token_ids, rows in chosen]
        step = ForwardStep(appends, tuple(self.moves), self.num_moves, hidden_states=rng.random() < 0.5)
        self.num_moves, self.moves = self.num_moves + len(self.moves), []
        return step, chosen


@pytest.mark.parametrize(("model", "num_steps"), [(saved, 120), (demo, 40)], ids=["random", "demo"])
@pytest.mark.slow
def test_random_steps_equal_a_full_recompute(
    compilations: Any, model: Callable[[Path], Path], num_steps: int, tmp_path: Path
) -> None:
    folder = model(tmp_path)
    runner, reference = runner_of(folder), Reference(folder)
    width = reference.model.config.vocab_size
    walk = Walk(runner, width, random.Random(5))
    worst = spread = 0.0
    with compilations() as compiled:
        while num_steps:
            walk.change()
            step, chosen = walk.step()
            if not chosen:
                walk.moves, walk.num_moves = list(step.moves), step.first_move
                continue
            num_steps -= 1
            output = runner.forward(step)
            if walk.rng.random() < 0.2:
                output = runner.forward(step)  # sent again: its moves are not done again
            for sequence, token_ids, _ in chosen:
                sequence.token_ids += token_ids
            logits = np.asarray(output.logits)
            assert logits.dtype == np.float32
            assert logits.shape[1] == width
            assert logits.shape[0] >= step.num_rows
            assert (output.hidden_states is not None) == step.hidden_states
            expected = reference([sequence.token_ids for sequence, _, _ in chosen])
            wanted = np.concatenate([rows[len(rows) - n :] for rows, (_, _, n) in zip(expected, chosen, strict=True)])
            if len(wanted):
                worst = max(worst, float(np.abs(logits[: len(wanted)] - wanted).max()))
                spread = max(spread, float(wanted.std()))
    assert not compiled
    assert worst < TOLERANCE * max(1, spread)
    assert spread > 1
    assert {"leave", "fork", "cut"} <= walk.seen
    assert len(walk.seen) > 20


@pytest.mark.slow
def test_hidden_states_are_those_of_the_rows(tmp_path: Path) -> None:
    folder = saved(tmp_path, tie_word_embeddings=True)
    runner, reference = runner_of(folder), Reference(folder)
    appends = [Append(Region(0, 64), 0, [3, 4, 5], 2), Append(Region(64, 64), 0, [6, 7], 1)]
    output = runner.forward(ForwardStep(appends, hidden_states=True))
    head = reference.model.get_output_embeddings().weight.detach().numpy()
    assert output.hidden_states.shape == (8, 64)
    logits = np.asarray(output.hidden_states)[:3] @ head.T
    np.testing.assert_allclose(logits, np.asarray(output.logits)[:3], atol=TOLERANCE)
    np.testing.assert_allclose(logits[:2], reference([[3, 4, 5]])[0][1:], atol=TOLERANCE)


@pytest.mark.slow
def test_bfloat16_is_as_close_as_it_can_be(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    text = [5, 250, 31, 7, 8, 120]
    exact = Reference(folder)([text])[0]
    off = np.abs(Reference(folder, torch.bfloat16)([text])[0] - exact).max()
    output = runner_of(folder, "bfloat16").forward(ForwardStep([Append(Region(0, 64), 0, text, 6)]))
    assert 0 < np.abs(np.asarray(output.logits)[:6] - exact).max() < 2 * off


@pytest.mark.slow
def test_prompt_of_which_all_rows_are_wanted(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    text = [(7 * i) % VOCABULARY_SIZE for i in range(60)]
    score = Score(np.array(text[1:], dtype=np.int32), 2)
    appends = [Append(Region(64, 64), 0, [1], 1), Append(Region(0, 64), 0, text, 59)]
    output = runner_of(folder).forward(ForwardStep(appends, score=score))
    np.testing.assert_allclose(np.asarray(output.logits)[1:60], Reference(folder)([text])[0][1:], atol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("beside", [[], [Append(Region(512, 128), 0, [9] * 70, 1)]], ids=["small", "in blocks"])
def test_another_sequence_that_is_not_a_number_stays_alone(beside: list[Append], tmp_path: Path) -> None:
    """The cells around a sequence have stale contents of other sequences."""
    runner = runner_of(saved(tmp_path))
    step = ForwardStep([Append(Region(64, 64), 0, [1, 2, 3], 1), *beside])
    wanted = np.asarray(runner.forward(step).logits)[0]
    around = np.r_[0:64, 67 : LIMITS.num_cells]
    runner._state = [(tuple(stored.at[:, around].set(np.nan) for stored in runner._state[0][0]),)]
    np.testing.assert_array_equal(np.asarray(runner.forward(step).logits)[0], wanted)


@pytest.mark.slow
def test_moves_copy_and_clear_what_they_name(tmp_path: Path) -> None:
    runner = runner_of(saved(tmp_path))
    append = Append(Region(1900, 1), 0, [1], 1)
    shape = runner._state[0][0][0].shape
    wanted = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    runner._state = [(tuple(jax.device_put(wanted.copy(), jax.devices("cpu")[0]) for _ in range(2)),)]
    runner.forward(ForwardStep([append], [Copy(64, 1024, 700), Clear(128, 300), Copy(1024, 0, 5)], 0))
    wanted[:, 1024:1724] = wanted[:, 64:764]
    wanted[:, 128:428] = 0
    wanted[:, :5] = wanted[:, 1024:1029]
    for stored in runner._state[0][0]:
        np.testing.assert_array_equal(np.delete(np.asarray(stored), 1900, axis=1), np.delete(wanted, 1900, axis=1))


@pytest.mark.slow
def test_interrupts_lose_nothing(tmp_path: Path) -> None:
    """Wherever an interrupt arrives, repeating the step gives the same result."""
    runner = runner_of(saved(tmp_path))
    text = [5, 250, 31, 7, 8, 120, 44]
    other = Append(Region(128, 64), len(text), [3], 1)
    wanted = None
    interrupted = 0

    armed = False

    def interrupt(*_: Any) -> None:
        if armed:  # otherwise it would end the tests
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for i in range(300):
            append = Append(Region(0, 64), 0, text, 1)
            runner.forward(ForwardStep([append]))
            step = ForwardStep([other], [Copy(0, 128, len(text)), Clear(0, 64)], 2 * i)
            signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + i % 60))
            while True:
                try:
                    armed = True
                    output = runner.forward(step)
                    armed = False
                    break
                except KeyboardInterrupt:  # the timer goes off once
                    interrupted += 1
                    armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            logits = np.asarray(output.logits)[0]
            wanted = logits if wanted is None else wanted
            np.testing.assert_array_equal(logits, wanted)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "limits",
    [
        RunnerLimits(num_cells=88, max_length=7, max_num_tokens=256, max_num_rows=8),
        RunnerLimits(num_cells=84, max_length=64, max_num_tokens=128, max_num_rows=40),
        RunnerLimits(num_cells=300, max_length=200, max_num_tokens=20, max_num_rows=1),
    ],
)
def test_nothing_is_compiled_after_the_start_whatever_the_limits(
    compilations: Any, limits: RunnerLimits, tmp_path: Path
) -> None:
    """Run a step of each number of tokens that fits, filling one sequence's region after the other."""
    runner = runner_of(saved(tmp_path), limits=limits)
    size = 1 << (limits.max_length - 1).bit_length()
    most = min(limits.max_num_tokens, limits.num_cells // size * limits.max_length + limits.num_cells % size)
    shapes = set()
    with compilations() as compiled:
        for dummy in runner.dummy_steps():
            runner.forward(dummy)
        for num_tokens in range(1, most + 1):
            appends = []
            for start in range(0, num_tokens, limits.max_length):
                count = min(limits.max_length, num_tokens - start)
                # the remaining cells are used too, in a region just large enough
                region = Region(start // limits.max_length * size, 1 << (count - 1).bit_length())
                appends.append(Append(region, 0, [1] * count, 1))
            if len(appends) > limits.max_num_rows:
                break
            runner.forward(ForwardStep(appends))
            shapes.add(runner._shape(ForwardStep(appends)))
    assert not compiled
    assert len(shapes) > 1


@pytest.mark.parametrize("max_num_tokens", [1, 8, 20, 100, 777, 8192])
@pytest.mark.parametrize("max_num_rows", [1, 8, 9, 33, 512])
def test_dummy_steps_have_each_number_of_rows(max_num_tokens: int, max_num_rows: int) -> None:
    runner = JaxRunner(XlaDevice("cpu"), 0, 1)
    runner._limits = RunnerLimits(num_cells=88, max_length=7, max_num_tokens=max_num_tokens, max_num_rows=max_num_rows)
    runner._shapes = shapes_for(runner._limits)
    found = [runner._shape(step).num_rows for step in runner.dummy_steps()]
    assert sorted(set(found)) == found == sorted({shape.num_rows for shape in runner._shapes})


@pytest.mark.slow
def test_moves_that_never_arrived_are_missed(tmp_path: Path) -> None:
    runner = runner_of(saved(tmp_path))
    with pytest.raises(GuidewayError, match="moves 0 to 2 of the KV cache never arrived"):
        runner.forward(ForwardStep([Append(Region(0, 64), 0, [1], 1)], (), 3))


@pytest.mark.slow
def test_a_step_beyond_the_limits_is_refused(tmp_path: Path) -> None:
    limits = RunnerLimits(num_cells=160, max_length=160, max_num_tokens=16, max_num_rows=1)
    runner = runner_of(saved(tmp_path), limits=limits)
    with pytest.raises(GuidewayError, match="a step has 17 tokens of 1 sequences"):
        runner.forward(ForwardStep([Append(Region(0, 128), 0, [1] * 17, 1)]))


def test_what_is_said_of_the_model(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    (folder / "generation_config.json").unlink()
    assert JaxRunner(XlaDevice("cpu"), 0, 1).load(str(folder), "auto") == ModelInfo(VOCABULARY_SIZE, 200, (7, 9))
    info = JaxRunner(XlaDevice("cpu"), 0, 1).load(DemoModel().path(), "float32")
    assert info == ModelInfo(1536, 1024, (2,))


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"attention_bias": True}, "its attention_bias is True, and only False is known here"),
        ({"hidden_act": "gelu"}, "its hidden_act is 'gelu', and only 'silu'"),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
            "its rope_parameters is .*'linear'",
        ),
    ],
)
def test_other_llamas_are_refused(changes: dict[str, Any], refused: str, tmp_path: Path) -> None:
    folder = saved(tmp_path, **changes)
    with pytest.raises(InvalidConfiguration, match=refused):
        JaxRunner(XlaDevice("cpu"), 0, 1).load(str(folder), "float32")


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    GPT2LMHeadModel(GPT2Config(vocab_size=10, n_embd=8, n_layer=1, n_head=1)).save_pretrained(tmp_path)
    with pytest.raises(InvalidConfiguration, match="it holds GPT2LMHeadModel, and only LlamaForCausalLM is known"):
        JaxRunner(XlaDevice("cpu"), 0, 1).load(str(tmp_path), "float32")


def test_what_else_cannot_be_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="cannot share a model among 2 workers"):
        JaxRunner(XlaDevice("cpu"), 0, 2)
    runner = JaxRunner(XlaDevice("cpu"), 0, 1)
    with pytest.raises(InvalidConfiguration, match="its configuration cannot be used"):
        runner.load(str(tmp_path / "none"), "float32")
    with pytest.raises(InvalidConfiguration, match="dtype must be auto or one of float32"):
        runner.load(str(tmp_path), "int8")
    folder = saved(tmp_path)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(InvalidConfiguration, match="its weights cannot be read"):
        runner.load(str(folder), "float32")
    saved(folder)
    runner.load(str(folder), "float32")
    with pytest.raises(InvalidConfiguration, match="at most the model's context of 200, not 201"):
        runner.start(RunnerLimits(num_cells=512, max_length=201, max_num_tokens=32, max_num_rows=8))


@pytest.mark.parametrize("max_num_tokens", [1, 8, 100, 2048, 8192, 100_000])
@pytest.mark.parametrize("max_num_rows", [1, 8, 33, 512])
@pytest.mark.parametrize("num_cells", [64, 1000, 65_536])
def test_shapes_are_few_and_take_every_step(max_num_tokens: int, max_num_rows: int, num_cells: int) -> None:
    limits = RunnerLimits(num_cells=num_cells, max_length=64, max_num_tokens=max_num_tokens, max_num_rows=max_num_rows)
    shapes = shapes_for(limits)
    assert len(shapes) <= MOST_SHAPES
    sizes = [shape.num_tokens for shape in shapes]
    assert sizes == sorted(set(sizes))
    largest = shapes[-1]
    most = min(max_num_tokens, num_cells)
    assert largest.num_tokens >= most
    num_sequences = min(most, max_num_rows)
    assert largest.num_rows >= num_sequences
    # enough blocks for the shortest ones: all sequences but one have one token, or each has one more than full blocks
    if largest.block_size > 1:
        assert largest.num_blocks >= min(most, (most - num_sequences) // largest.block_size + num_sequences)
