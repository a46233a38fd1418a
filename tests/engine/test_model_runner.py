"""The runner computes what the model computes, whatever the mix of joins, leaves, appends, truncates and forks."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from guideway.api import InvalidConfiguration, InvalidRequest
from guideway.engine.kv_cache import KVCacheError, KVCacheFull
from guideway.engine.model_runner import ModelRunner
from torch import Tensor
from transformers import PreTrainedModel

from tests.engine.models import CONTEXT, FACTORIES, VOCABULARY_SIZE, gpt2, llama, llama_gqa

TOLERANCE = 1e-4


def recompute(reference: PreTrainedModel, token_ids: list[int]) -> Tensor:
    """``[tokens, logits width]`` of the whole sequence at once, by the model as `transformers` runs it."""
    with torch.inference_mode():
        logits: Tensor = reference(torch.tensor([token_ids])).logits[0]
    return logits


def random_ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCABULARY_SIZE) for _ in range(count)]


@pytest.mark.parametrize("name", FACTORIES)
def test_random_steps_equal_a_full_recompute(name: str) -> None:
    num_slots, max_length = 8, 150
    rng = random.Random(1)
    reference = FACTORIES[name](0)
    runner = ModelRunner(FACTORIES[name](0), num_slots=num_slots, max_length=max_length)
    texts: dict[int, list[int]] = {}  # what each slot should hold
    seen: Counter[str] = Counter()
    worst = 0.0
    spread = 0.0

    while seen["step"] < 200:
        event = rng.random()
        if len(texts) < 2 or (event < 0.25 and runner.cache.capacity()):
            texts[runner.cache.allocate()] = []
            seen["join"] += 1
        elif event < 0.3:
            slot = rng.choice(list(texts))
            runner.cache.release(slot)
            del texts[slot]
            seen["leave"] += 1
        elif event < 0.42:
            slot = rng.choice(list(texts))
            length = rng.randint(max(0, len(texts[slot]) - 20), len(texts[slot]))
            runner.cache.truncate(slot, length)
            del texts[slot][length:]
            seen["truncate"] += 1
        elif event < 0.52 and runner.cache.capacity():
            slot = rng.choice(list(texts))
            texts[runner.cache.fork(slot)] = list(texts[slot])
            seen["fork"] += 1

        batch, logits_rows = [], []
        for slot in rng.sample(list(texts), len(texts)):
            if texts[slot] and rng.random() < 0.2:
                continue  # sits this step out
            if len(texts[slot]) == max_length:
                runner.cache.release(slot)
                del texts[slot]
                seen["full"] += 1
                continue
            count = rng.choice([1, 1, 1, 2, 5, 30]) if texts[slot] else rng.randint(1, 60)
            new = random_ids(rng, min(count, max_length - len(texts[slot])))
            batch.append((slot, new))
            logits_rows.append(rng.choice([0, 1, len(new)]))
            seen[f"append {len(new)}"] += 1
        if not batch:
            continue
        output = runner.forward(batch, logits_rows, hidden_states=True)
        seen["step"] += 1
        seen["entry"] += len(batch)

        assert output.logits.dtype == torch.float32
        assert output.logits.shape == (sum(logits_rows), runner.logits_width)
        assert output.hidden_states is not None
        assert len(output.hidden_states) == sum(logits_rows)
        row = 0
        for (slot, new), num_rows in zip(batch, logits_rows, strict=True):
            texts[slot] += new
            assert runner.cache.length(slot) == len(texts[slot])
            expected = recompute(reference, texts[slot])[len(texts[slot]) - num_rows :]
            if num_rows:
                worst = max(worst, float((output.logits[row : row + num_rows] - expected).abs().max()))
                spread = max(spread, float(expected.std()))
            row += num_rows

    assert spread > 0.3, "the weights are too small for an error to show"
    assert worst < TOLERANCE
    events = ("join", "leave", "full", "truncate", "fork", "append 1", "append 2", "append 5", "append 30")
    assert min(seen[event] for event in events) > 10
    assert seen["entry"] > 3.5 * seen["step"]
    for slot in texts:
        runner.cache.release(slot)
    assert runner.cache.capacity() == num_slots


def test_a_padded_slot_that_overflowed_does_not_reach_its_next_owner() -> None:
    runner = ModelRunner(llama(), num_slots=2, max_length=64)
    first, second = runner.cache.allocate(), runner.cache.allocate()
    runner.forward([(first, [1] * 40), (second, [2] * 40)])
    for tensors in (runner._cache.keys, runner._cache.values):
        tensors[:, first, :, :40] = torch.nan
    runner.cache.truncate(first, 0)
    runner.cache.release(first)
    assert runner.cache.allocate() == first
    output = runner.forward([(first, [3, 4]), (second, [5])])  # one rectangle, padded to 41 keys
    assert torch.isfinite(output.logits).all()
    assert torch.allclose(output.logits[0], recompute(llama(), [3, 4])[-1], atol=TOLERANCE)


def test_rows_of_logits_come_in_the_order_of_the_batch_whatever_the_slots() -> None:
    reference = gpt2()
    runner = ModelRunner(gpt2(), num_slots=4, max_length=64)
    a, b, c = (runner.cache.allocate() for _ in range(3))
    long = [7] * 30
    output = runner.forward([(c, [1, 2, 3]), (a, long), (b, [4])], [2, 1, 0])
    expected = torch.cat([recompute(reference, [1, 2, 3])[1:], recompute(reference, long)[-1:]])
    assert torch.allclose(output.logits, expected, atol=TOLERANCE)
    assert runner.forward([(b, [5])], [0]).logits.shape == (0, runner.logits_width)
    output = runner.forward([(b, [6]), (a, [8])])
    expected = torch.stack([recompute(reference, [4, 5, 6])[-1], recompute(reference, [*long, 8])[-1]])
    assert torch.allclose(output.logits, expected, atol=TOLERANCE)


def test_hidden_states_are_what_the_logits_are_computed_from() -> None:
    runner = ModelRunner(llama(), num_slots=2, max_length=64)
    slot = runner.cache.allocate()
    output = runner.forward([(slot, [1, 2, 3, 4])], [2], hidden_states=True)
    assert output.hidden_states is not None
    with torch.inference_mode():
        whole = llama()(torch.tensor([[1, 2, 3, 4]]), output_hidden_states=True)
    assert torch.allclose(output.hidden_states, whole.hidden_states[-1][0, 2:], atol=TOLERANCE)
    assert runner.forward([(slot, [5])]).hidden_states is None


def test_a_bfloat16_model_gives_float32_logits() -> None:
    model, reference = llama_gqa(), llama_gqa()
    for each in (model, reference):
        each.to(torch.bfloat16)  # type: ignore[arg-type]
    runner = ModelRunner(model, num_slots=2, max_length=64)
    a, b = runner.cache.allocate(), runner.cache.allocate()
    runner.forward([(a, list(range(20))), (b, [1, 2, 3])])
    output = runner.forward([(a, [20, 21]), (b, [4])], hidden_states=True)
    assert output.logits.dtype == torch.float32
    assert output.hidden_states is not None
    assert output.hidden_states.dtype == torch.bfloat16
    expected = torch.stack([recompute(reference, list(range(22)))[-1], recompute(reference, [1, 2, 3, 4])[-1]])
    assert float(expected.float().std()) > 0.3
    assert torch.allclose(output.logits, expected.float(), atol=0.05)


def test_a_step_that_cannot_run_changes_nothing() -> None:
    runner = ModelRunner(llama(), num_slots=3, max_length=8)
    slot, other = runner.cache.allocate(), runner.cache.allocate()
    runner.forward([(slot, [1, 2, 3, 4, 5]), (other, [1])])
    refused: list[tuple[list[tuple[int, list[int]]], list[int] | None, type[Exception], str]] = [
        ([], None, InvalidRequest, "at least one sequence"),
        ([(other, [2]), (slot, [1, 2, 3, 4])], None, KVCacheFull, "holds 5 tokens and cannot take 4 more"),
        ([(slot, [1]), (2, [1])], None, KVCacheError, "slot 2 is not allocated"),
        ([(slot, [1]), (slot, [1])], None, InvalidRequest, "more than once"),
        ([(slot, [1]), (other, [])], None, InvalidRequest, "no token"),
        ([(slot, [1]), (other, [VOCABULARY_SIZE])], None, InvalidRequest, f"outside 0 to {VOCABULARY_SIZE - 1}"),
        ([(slot, [1]), (other, [-1])], None, InvalidRequest, f"outside 0 to {VOCABULARY_SIZE - 1}"),
        ([(slot, [1])], [2], InvalidRequest, "appends 1 tokens and cannot give 2 rows"),
        ([(slot, [1])], [-1], InvalidRequest, "cannot give -1 rows"),
        ([(slot, [1])], [1, 1], InvalidRequest, "2 row counts for 1 sequences"),
    ]
    for batch, logits_rows, error, message in refused:
        with pytest.raises(error, match=message):
            runner.forward(batch, logits_rows)
    assert (runner.cache.length(slot), runner.cache.length(other)) == (5, 1)
    output = runner.forward([(slot, [6]), (other, [2])])
    expected = torch.stack([recompute(llama(), [1, 2, 3, 4, 5, 6])[-1], recompute(llama(), [1, 2])[-1]])
    assert torch.allclose(output.logits, expected, atol=TOLERANCE)


def test_a_model_that_raises_leaves_every_length_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    runner = ModelRunner(model, num_slots=2, max_length=64)
    slot = runner.cache.allocate()
    runner.forward([(slot, [1, 2, 3])])

    def fail(*_: object) -> None:
        raise MemoryError

    hook = model.get_submodule("lm_head").register_forward_pre_hook(fail)
    with pytest.raises(MemoryError):
        runner.forward([(slot, [9, 9])])
    hook.remove()
    assert runner.cache.length(slot) == 3
    assert torch.allclose(runner.forward([(slot, [4])]).logits[0], recompute(llama(), [1, 2, 3, 4])[-1], atol=TOLERANCE)


def test_two_runners_do_not_disturb_each_other() -> None:
    runners = [ModelRunner(llama(seed), num_slots=1, max_length=32) for seed in (0, 1)]
    for runner in runners:
        runner.forward([(runner.cache.allocate(), [1, 2])])
    for seed, runner in enumerate(runners):
        assert torch.allclose(
            runner.forward([(0, [3])]).logits[0], recompute(llama(seed), [1, 2, 3])[-1], atol=TOLERANCE
        )


@pytest.mark.parametrize(
    ("num_slots", "max_length", "field"), [(0, 8, "num_slots"), (1, 0, "max_length"), (1, CONTEXT + 1, "max_length")]
)
def test_sizes_that_do_not_fit_are_refused(num_slots: int, max_length: int, field: str) -> None:
    with pytest.raises(InvalidConfiguration) as refusal:
        ModelRunner(llama(), num_slots=num_slots, max_length=max_length)
    assert refusal.value.field == field


def test_what_the_model_knows_of_its_sizes() -> None:
    runner = ModelRunner(gpt2(), num_slots=3, max_length=20)
    assert (runner.logits_width, runner.max_context) == (VOCABULARY_SIZE, CONTEXT)
    assert (runner.cache.num_slots, runner.cache.max_length, runner.cache.capacity()) == (3, 20, 3)
