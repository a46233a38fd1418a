"""Training in seconds: a tiny network learns, resumes where it stopped, and is exported exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from guideway_demo_model import DemoModel
from guideway_demo_model.training.batches import Batch, Position, batches
from guideway_demo_model.training.muon import Muon
from guideway_demo_model.training.network import Network, Shape, export, take_over
from guideway_demo_model.training.tokenizer import END_ID, VOCABULARY_SIZE
from guideway_demo_model.training.train import Recipe, train
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

TINY = Recipe(
    tokens=60_000,
    batch_tokens=1024,
    pool_samples=300,
    hidden=32,
    layers=1,
    intermediate=64,
    kv_heads=1,
    muon_rate=0.02,
    adam_rate=0.02,
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(DemoModel().path())


@pytest.fixture
def out(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> Path:
    """Return a folder with the shipped tokenizer, to save the time of training one."""
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def stream(tokenizer: PreTrainedTokenizerFast, start: Position) -> Iterator[Batch]:
    return batches(tokenizer, 0, pool_samples=100, max_tokens=1024, start=start)


@pytest.fixture(scope="module")
def batch(tokenizer: PreTrainedTokenizerFast) -> Batch:
    return next(stream(tokenizer, Position()))


@pytest.mark.slow
def test_a_few_steps_lower_the_loss_and_leave_a_model(out: Path, batch: Batch) -> None:
    trainer = train(TINY, out)
    assert trainer.loss is not None
    assert trainer.loss < 5.5  # it begins at log(1536) = 7.3
    assert not (out / "checkpoint.pt").exists()
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    with torch.no_grad():
        logits = model(batch.token_ids).logits.view(-1, VOCABULARY_SIZE)[batch.positions]
        expected = trainer.finished()(batch.token_ids, batch.positions, batch.targets)
    assert cross_entropy(logits, batch.targets).item() == pytest.approx(expected.item(), abs=0.02)  # stored as bfloat16


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_as_if_it_was_not(out: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    whole = train(TINY, out, stop_after_steps=8)
    parts = tmp_path_factory.mktemp("parts")
    AutoTokenizer.from_pretrained(out).save_pretrained(parts)
    train(TINY, parts, stop_after_steps=3)
    resumed = train(TINY, parts, stop_after_steps=8)
    assert (resumed.steps, resumed.tokens, resumed.position) == (whole.steps, whole.tokens, whole.position)
    assert all(map(torch.equal, whole.weights, resumed.weights))


def test_a_checkpoint_of_another_recipe_is_refused(out: Path) -> None:
    train(TINY, out, stop_after_steps=1)
    with pytest.raises(ValueError, match="made with seed=0, not 1"):
        train(replace(TINY, seed=1), out)


def test_only_answers_are_trained_on(batch: Batch, tokenizer: PreTrainedTokenizerFast) -> None:
    length = batch.token_ids.shape[1]
    flat = batch.token_ids.view(-1)
    assert torch.equal(flat[batch.positions + 1], batch.targets)
    for row, ids in enumerate(batch.token_ids.tolist()):
        targets = batch.targets[batch.positions // length == row].tolist()
        text = tokenizer.decode(targets)
        assert text.startswith("{")
        assert targets[-1] == END_ID
        assert tokenizer.decode(ids).split("<|assistant|>")[1].startswith(text)


def test_yes_and_no_weigh_more(tokenizer: PreTrainedTokenizerFast) -> None:
    seen = set()
    for _, batch in zip(range(5), stream(tokenizer, Position()), strict=False):
        for token, weight in zip(batch.targets.tolist(), batch.weights.tolist(), strict=True):
            word = tokenizer.decode([token])
            assert weight == (4 if word in ("true", "false") else 1)
            seen.add(word)
    assert {"true", "false"} <= seen


def test_the_data_go_on_from_a_position(tokenizer: PreTrainedTokenizerFast) -> None:
    both = stream(tokenizer, Position())
    first, second = next(both), next(both)
    again = next(stream(tokenizer, first.after))
    assert torch.equal(second.token_ids, again.token_ids)
    assert not torch.equal(first.token_ids, second.token_ids)


def test_the_export_computes_what_the_network_does(batch: Batch) -> None:
    torch.manual_seed(0)
    network = Network(Shape(VOCABULARY_SIZE, hidden=64, layers=2, intermediate=96, kv_heads=1))
    with torch.no_grad():
        for weight in network.parameters():
            weight.normal_(0, 0.1)
        logits = export(network)(batch.token_ids).logits.view(-1, VOCABULARY_SIZE)[batch.positions]
        loss = network(batch.token_ids, batch.positions, batch.targets)
    assert loss.item() == pytest.approx(cross_entropy(logits, batch.targets).item(), rel=1e-4)


def test_an_exported_model_is_taken_over_with_fewer_kv_heads_or_as_many(batch: Batch) -> None:
    torch.manual_seed(0)
    first, same, fewer = (
        Network(Shape(VOCABULARY_SIZE, hidden=128, layers=2, intermediate=96, kv_heads=heads)) for heads in (4, 4, 2)
    )
    with torch.no_grad():
        for weight in first.parameters():
            weight.normal_(0, 0.1)
        for block in first.blocks:  # merging pairs of equal kv heads loses nothing
            key, value = block.qkv.weight[128:256].view(2, 2, 32, 128), block.qkv.weight[256:].view(2, 2, 32, 128)
            key[:, 1], value[:, 1] = key[:, 0], value[:, 0]
        losses = []
        for network in (first, same, fewer):
            if network is not first:
                take_over(network, export(first))
            losses.append(network(batch.token_ids, batch.positions, batch.targets).item())
    assert losses[1:] == pytest.approx([losses[0]] * 2, rel=1e-5)
    assert fewer.blocks[0].qkv.weight.shape == (256, 128)


@pytest.mark.parametrize("layers", [4, 5])
def test_an_exported_model_is_taken_over_with_more_layers(batch: Batch, layers: int) -> None:
    torch.manual_seed(0)
    first, more = (
        Network(Shape(VOCABULARY_SIZE, hidden=64, layers=count, intermediate=96, kv_heads=1)) for count in (3, layers)
    )
    with torch.no_grad():
        for weight in first.parameters():
            weight.normal_(0, 0.1)
        take_over(more, export(first))
    losses = [network(batch.token_ids, batch.positions, batch.targets) for network in (first, more)]
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-5)
    losses[1].backward()
    assert all(block.out.weight.grad.abs().max() > 0 for block in more.blocks)  # the new layers will learn


@pytest.mark.slow
def test_training_begins_with_another_model(tmp_path: Path, batch: Batch) -> None:
    start = str(DemoModel().path())
    trainer = train(Recipe(start=start, tokens=1), tmp_path / "same")
    with torch.no_grad():
        loss = trainer.finished()(batch.token_ids, batch.positions, batch.targets).item()
    assert loss < 1  # a random one begins at 7.3
    assert (tmp_path / "same" / "tokenizer.json").read_bytes() == (DemoModel().path() / "tokenizer.json").read_bytes()


def test_the_gradient_is_the_exports_own(batch: Batch) -> None:
    """Compare the two functions that write their own derivative with autograd's."""
    torch.manual_seed(0)
    network = Network(Shape(VOCABULARY_SIZE, hidden=32, layers=1, intermediate=64, kv_heads=1))
    with torch.no_grad():
        for weight in network.parameters():
            weight.normal_(0, 0.1)
    model = export(network)
    network(batch.token_ids, batch.positions, batch.targets, batch.weights).backward()
    logits = model(batch.token_ids).logits.view(-1, VOCABULARY_SIZE)[batch.positions]
    losses = cross_entropy(logits, batch.targets, reduction="none")
    ((losses * batch.weights).sum() / batch.weights.sum()).backward()
    torch.testing.assert_close(
        network.embedding.weight.grad, model.model.embed_tokens.weight.grad, rtol=1e-3, atol=1e-6
    )
    mine, theirs = network.blocks[0].down.weight.grad, model.model.layers[0].mlp.down_proj.weight.grad
    torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-6)


def test_muon_moves_every_direction_alike() -> None:
    """A gradient with singular values 1, 0.1 and 0.01 becomes an update with nearly equal singular values."""
    torch.manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(8, 3))[0] for _ in range(2))
    matrix = torch.zeros(8, 8)
    matrix.grad = left @ torch.diag(torch.tensor([1.0, 0.1, 0.01])) @ right.T
    Muon([(matrix, 1)]).step(1.0)
    singular = torch.linalg.svdvals(matrix)[:3] / (0.2 * 8**0.5)
    assert 0.6 < singular.min() <= singular.max() < 1.3
