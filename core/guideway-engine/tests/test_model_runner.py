"""The runner computes the same as the model, for any mix of joins, leaves, appends, truncations, forks, shared prefixes
and preemptions."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from engine_support.driver import Driver, recompute
from engine_support.models import CONTEXT, FACTORIES, VOCABULARY_SIZE, WINDOW, gpt2, llama
from guideway.api import InvalidConfiguration
from guideway.api.forward import Append, ForwardStep, Region
from guideway_engine.runners.transformers.model_runner import PackedModel
from guideway_engine.scheduling.kv_cache import KVCacheFull
from torch import Tensor
from transformers import PreTrainedModel

from tests.support.stages import everyday

TOLERANCE = 1e-4
MAX_LENGTH = 120


def last_row(reference: PreTrainedModel, token_ids: list[int]) -> Tensor:
    return recompute(reference, [token_ids])[0][-1]


class Walk:
    """Random steps of a driver, and the expected text of each slot."""

    def __init__(self, model: PreTrainedModel, seed: int) -> None:
        # room for 8 regions of MAX_LENGTH in 12 slots, so that late sequences evict others
        self.driver = Driver(model, num_slots=12, max_length=MAX_LENGTH, num_cells=1024)
        self.rng = random.Random(seed)
        self.texts: dict[int, list[int]] = {}
        self.ended: list[list[int]] = []
        self.seen: Counter[str] = Counter()

    def random_ids(self, count: int) -> list[int]:
        return [self.rng.randrange(VOCABULARY_SIZE) for _ in range(count)]

    def change(self) -> None:
        """Do something that happens between steps."""
        cache, rng, texts = self.driver.cache, self.rng, self.texts
        event = rng.random()
        slot = rng.choice(list(texts)) if texts else -1
        if len(texts) < 2 or (event < 0.3 and cache.capacity()):
            prompt: list[int] = []
            if self.ended and rng.random() < 0.7:  # an earlier text continues differently
                old = rng.choice(self.ended + list(texts.values()))
                prompt = old[: rng.randint(0, len(old))] + self.random_ids(3)
            joined = cache.allocate(prompt)
            texts[joined] = cache.token_ids(joined)
            assert texts[joined] == prompt[: cache.length(joined)]
            self.seen["shared"] += bool(texts[joined])
            self.seen["join"] += 1
        elif event < 0.4:
            cache.release(slot, keep=rng.random() < 0.7)
            self.ended.append(texts.pop(slot))
            self.seen["leave"] += 1
        elif event < 0.5:
            length = rng.randint(max(0, len(texts[slot]) - 20), len(texts[slot]))
            cache.truncate(slot, length)
            del texts[slot][length:]
            self.seen["truncate"] += 1
        elif event < 0.6 and cache.capacity():
            copy = cache.allocate([*texts[slot], 0])
            texts[copy] = cache.token_ids(copy)
            self.seen["fork"] += bool(texts[copy])

    def batch(self) -> list[tuple[int, list[int]]]:
        """Return the tokens that the next step appends, after reserving room; preempted slots start again."""
        cache, rng, texts = self.driver.cache, self.rng, self.texts
        batch: list[tuple[int, list[int]]] = []
        for slot in rng.sample(list(texts), len(texts)):
            done = cache.length(slot)
            if done and rng.random() < 0.2:
                continue  # skips this step
            if done == MAX_LENGTH:
                cache.release(slot)
                self.ended.append(texts.pop(slot))
                self.seen["full"] += 1
                continue
            count = rng.choice([1, 1, 1, 1, 2, 5, 30]) if texts[slot] else rng.randint(1, 60)
            new = texts[slot][done:] or self.random_ids(min(count, MAX_LENGTH - done))
            while True:
                try:
                    cache.reserve(slot, len(new))
                    break
                except KVCacheFull:
                    chosen = {slot, *(other for other, _ in batch)}
                    victims = [other for other in texts if other not in chosen and cache.length(other)]
                    if not victims:
                        new = []
                        break
                    cache.truncate(rng.choice(victims), 0)  # its text is computed again later
                    self.seen["preempt"] += 1
            if new:
                batch.append((slot, new))
                self.seen[f"append {len(new)}"] += 1
        return batch


@pytest.mark.slow
@pytest.mark.parametrize("name", everyday(FACTORIES, "gemma2"))
def test_random_steps_equal_a_full_recompute(name: str) -> None:
    reference = FACTORIES[name](0)
    reference.set_attn_implementation("eager")  # the other implementations ignore a softcap
    walk = Walk(FACTORIES[name](0), seed=2)
    cache, seen = walk.driver.cache, walk.seen
    worst = spread = 0.0
    sizes = set()
    while seen["step"] < 200:
        walk.change()
        batch = walk.batch()
        if not batch:
            continue
        num_rows = [walk.rng.choice([0, 1, len(new)]) for _, new in batch]
        starts = [cache.length(slot) for slot, _ in batch]
        output = walk.driver.forward(batch, num_rows, hidden_states=True)
        seen["step"] += 1
        seen["entry"] += len(batch)
        sizes.add(len({cache.region(slot).size for slot, _ in batch}))

        assert output.logits.dtype == torch.float32
        assert output.logits.shape == (sum(num_rows), walk.driver.runner.logits_width)
        assert output.hidden_states is not None
        assert len(output.hidden_states) == sum(num_rows)
        for (slot, new), start in zip(batch, starts, strict=True):
            walk.texts[slot][start:] = new
            assert cache.token_ids(slot) == walk.texts[slot]
        wanted = [(walk.texts[slot], count) for (slot, _), count in zip(batch, num_rows, strict=True) if count]
        if wanted:
            every = recompute(reference, [text for text, _ in wanted])
            expected = torch.cat([rows[-count:] for rows, (_, count) in zip(every, wanted, strict=True)])
            worst = max(worst, float((output.logits - expected).abs().max()))
            spread = max(spread, float(expected.std()))

    assert spread > 0.3, "the weights are too small for an error to show"
    assert worst < TOLERANCE
    events = ("join", "leave", "shared", "truncate", "fork", "preempt", "full", "append 1", "append 5", "append 30")
    assert min(seen[event] for event in events) > 5, seen
    assert seen["entry"] > 5 * seen["step"]
    assert max(sizes) > 1
    for slot in walk.texts:
        cache.release(slot)
    assert cache.capacity() == cache.num_slots


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gemma3", "qwen2-moe"])
def test_a_window_makes_a_difference(name: str) -> None:
    """Otherwise the test above could not show that the window is obeyed."""
    token_ids = [i * 7 % VOCABULARY_SIZE for i in range(5 * WINDOW)]
    narrow, wide = FACTORIES[name](0), FACTORIES[name](0, sliding_window=CONTEXT)  # type: ignore[call-arg]
    assert (last_row(narrow, token_ids) - last_row(wide, token_ids)).abs().max() > 0.1


def test_a_padded_region_that_overflowed_does_not_reach_its_next_owner() -> None:
    driver = Driver(llama(), num_slots=2, max_length=64, num_cells=128)
    cache = driver.cache
    first, second = cache.allocate(), cache.allocate()
    driver.forward([(first, [1] * 40), (second, [2] * 40)])
    for tensor in (driver.runner._store.keys, driver.runner._store.values):
        tensor[:, :, :64] = torch.nan
    cache.reserve(first, 24)
    cache.truncate(first, 30)
    cache.release(first)
    assert cache.allocate() == first
    output = driver.forward([(first, [3, 4]), (second, [5])])  # one rectangle, padded to 41 keys
    assert cache.region(first) == Region(0, 64)
    assert torch.isfinite(output.logits).all()
    assert torch.allclose(output.logits[0], last_row(llama(), [3, 4]), atol=TOLERANCE)


def test_rows_of_logits_come_in_the_order_of_the_batch_whatever_the_slots() -> None:
    reference = gpt2()
    driver = Driver(gpt2(), num_slots=4, max_length=64)
    a, b, c = (driver.cache.allocate() for _ in range(3))
    long = [7] * 30
    output = driver.forward([(c, [1, 2, 3]), (a, long), (b, [4])], [2, 1, 0])
    expected = torch.cat([recompute(reference, [[1, 2, 3]])[0][1:], recompute(reference, [long])[0][-1:]])
    assert torch.allclose(output.logits, expected, atol=TOLERANCE)
    assert driver.forward([(b, [5])], [0]).logits.shape == (0, driver.runner.logits_width)
    output = driver.forward([(b, [6]), (a, [8])])
    expected = torch.stack([last_row(reference, [4, 5, 6]), last_row(reference, [*long, 8])])
    assert torch.allclose(output.logits, expected, atol=TOLERANCE)


def test_hidden_states_are_what_the_logits_are_computed_from() -> None:
    driver = Driver(llama(), num_slots=2, max_length=64)
    slot = driver.cache.allocate()
    output = driver.forward([(slot, [1, 2, 3, 4])], [2], hidden_states=True)
    assert output.hidden_states is not None
    with torch.inference_mode():
        whole = llama()(torch.tensor([[1, 2, 3, 4]]), output_hidden_states=True)
    assert torch.allclose(output.hidden_states, whole.hidden_states[-1][0, -2:], atol=TOLERANCE)
    assert driver.forward([(slot, [5])]).hidden_states is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes_give_float32_logits(dtype: torch.dtype) -> None:
    model = llama(num_kv_heads=2)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    driver = Driver(model, num_slots=3, max_length=64)
    slots = [driver.cache.allocate() for _ in range(3)]
    driver.forward([(slot, [1, 2, 3, slot]) for slot in slots])
    output = driver.forward([(slot, [5, 6][: 1 + slot % 2]) for slot in slots])
    assert output.logits.dtype == torch.float32
    texts = [[1, 2, 3, slot, *[5, 6][: 1 + slot % 2]] for slot in slots]
    expected = torch.stack([rows[-1] for rows in recompute(llama(num_kv_heads=2), texts)])
    assert torch.allclose(output.logits, expected, atol=0.1)


def test_a_model_that_raises_computes_the_same_the_next_time() -> None:
    model = llama()
    driver = Driver(model, num_slots=3, max_length=128, num_cells=256)
    slot, other = driver.cache.allocate(), driver.cache.allocate()
    driver.forward([(slot, [1] * 60), (other, [2] * 60)])

    def fail(*_: object) -> None:
        raise MemoryError

    driver.cache.truncate(other, 0)
    copy = driver.cache.allocate([1] * 61)
    step = driver.step([(slot, [9] * 8), (copy, [8])])
    assert step.moves
    hook = model.get_submodule("lm_head").register_forward_pre_hook(fail)
    with pytest.raises(MemoryError):
        driver.runner.forward(step)
    hook.remove()
    again = driver.runner.forward(step).logits
    assert torch.allclose(again[0], last_row(llama(), [1] * 60 + [9] * 8), atol=TOLERANCE)
    assert torch.allclose(again[1], last_row(llama(), [1] * 60 + [8]), atol=TOLERANCE)


def test_a_step_that_is_sent_again_does_only_the_moves_that_are_left() -> None:
    driver = Driver(llama(), num_slots=2, max_length=128, num_cells=256)
    slot = driver.cache.allocate()
    driver.forward([(slot, [1] * 40)])
    copy = driver.cache.allocate([1] * 41)
    first = driver.step([(copy, [2])])
    driver.runner.forward(first)  # the scheduler does not learn of it
    driver.cache.advance(copy, [2])
    driver.cache.release(slot)
    step = driver.step([(copy, [3])])
    assert (step.first_move, len(step.moves)) == (0, len(first.moves) + 1)
    assert torch.allclose(driver.runner.forward(step).logits[0], last_row(llama(), [1] * 40 + [2, 3]), atol=TOLERANCE)


def test_two_runners_do_not_disturb_each_other() -> None:
    drivers = [Driver(llama(seed), num_slots=1, max_length=32) for seed in (0, 1)]
    for driver in drivers:
        driver.forward([(driver.cache.allocate(), [1, 2])])
    for seed, driver in enumerate(drivers):
        expected = last_row(llama(seed), [1, 2, 3])
        assert torch.allclose(driver.forward([(0, [3])]).logits[0], expected, atol=TOLERANCE)


def test_token_ids_may_be_any_sequence() -> None:
    runner = PackedModel(llama(), num_cells=64, max_length=64)
    step = ForwardStep([Append(Region(0, 64), 0, (1, 2), 1)])
    expected = runner.forward(step).logits
    array: Any = np.array([1, 2], dtype=np.int32)
    assert torch.equal(runner.forward(ForwardStep([step.appends[0]._replace(token_ids=array)])).logits, expected)


@pytest.mark.parametrize(
    ("num_cells", "max_length", "field"),
    [(8, 16, "num_cells"), (64, 0, "max_length"), (512, CONTEXT + 1, "max_length")],
)
def test_sizes_that_do_not_fit_are_refused(num_cells: int, max_length: int, field: str) -> None:
    with pytest.raises(InvalidConfiguration) as refusal:
        PackedModel(llama(), num_cells=num_cells, max_length=max_length)
    assert refusal.value.field == field


def test_what_the_model_knows_of_its_sizes() -> None:
    runner = PackedModel(gpt2(), num_cells=64, max_length=20)
    assert (runner.logits_width, runner.max_context) == (VOCABULARY_SIZE, CONTEXT)
