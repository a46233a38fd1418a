"""``python -m guideway_demo_model.training.train --out FOLDER``: train the demo model on a CPU.

FOLDER gets the model as ``transformers`` loads it, ``log.jsonl``, and, until the end, ``checkpoint.pt``, from which
another run resumes. ``--start FOLDER`` begins with the tokenizer and the weights of an earlier model of the same sizes,
which may have more kv heads and fewer layers.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from guideway_demo_model.training.batches import Batch, Position, batches, texts
from guideway_demo_model.training.muon import Muon
from guideway_demo_model.training.network import Network, Shape, export, take_over
from guideway_demo_model.training.tokenizer import train_tokenizer

__all__ = ["Recipe", "Trainer", "main", "train"]

TOKENIZER_SAMPLES = 12_000
WARM_UP_STEPS = 60
DECAY_FROM = 0.3
"""Share of the training after which the learning rate decreases linearly."""
LOWEST_RATE = 0.02
LOG_EVERY = 50


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings that decide the outcome of a training run."""

    tokens: float = 40e6
    """Tokens to train on, including prompts, without padding."""
    minutes: float | None = None
    """Minutes after which training ends, even with fewer tokens; the learning rate is scheduled for this."""
    batch_tokens: int = 4096
    """Tokens of a batch, including padding."""
    pool_samples: int = 6000
    """Samples that are shuffled at a time; samples that do not fill a batch are dropped."""
    hidden: int = 192
    layers: int = 6
    intermediate: int = 512
    kv_heads: int = 3
    start: str | None = None
    """Folder of a model to begin with."""
    muon_rate: float = 4e-3
    adam_rate: float = 4e-3
    seed: int = 0


class Trainer:
    """A network in bfloat16 with float32 weights, and its two optimizers: AdamW for the embedding, Muon for the
    rest."""

    def __init__(self, recipe: Recipe, vocabulary_size: int) -> None:
        self.recipe = recipe
        torch.manual_seed(recipe.seed)
        self.shape = Shape(vocabulary_size, recipe.hidden, recipe.layers, recipe.intermediate, recipe.kv_heads)
        network = Network(self.shape)
        if recipe.start is not None:
            take_over(network, LlamaForCausalLM.from_pretrained(recipe.start, dtype=torch.float32))
        self.weights: list[Tensor] = [weight.detach().clone() for weight in network.parameters()]
        self.network = network.bfloat16()
        names = [name for name, _ in network.named_parameters()]
        self._embedding = names.index("embedding.weight")
        parts = {"qkv": self.shape.group + 2, "gate_up": 2}  # by kv head; each of its query heads is a part
        self._muon = Muon(
            [
                (weight, parts.get(name.split(".")[-2], 1))
                for name, weight in zip(names, self.weights, strict=True)
                if name != "embedding.weight"
            ]
        )
        embedding = self.weights[self._embedding]
        self._adam = torch.optim.AdamW([embedding], betas=(0.9, 0.98), weight_decay=0.0, foreach=True)
        self.steps = 0
        self.tokens = 0
        self.seconds = 0.0
        self.loss: float | None = None
        """Smoothed loss over the answers' tokens."""
        self.position = Position()

    def progress(self) -> float:
        """Return the progress from 0 to 1, of the tokens or of the time, whichever is further."""
        by_tokens = self.tokens / self.recipe.tokens
        by_time = self.seconds / 60 / self.recipe.minutes if self.recipe.minutes else 0.0
        return min(1.0, max(by_tokens, by_time))

    def step(self, batch: Batch) -> float:
        """Update once. Return the batch's loss before the update."""
        start = time.perf_counter()
        rate = self._rate()
        loss = self.network(batch.token_ids, batch.positions, batch.targets, batch.weights)
        loss.backward()
        live = list(self.network.parameters())
        for weight, parameter in zip(self.weights, live, strict=True):
            assert parameter.grad is not None
            weight.grad = parameter.grad.float()
            parameter.grad = None
        nn.utils.clip_grad_norm_(self.weights, 1.0)
        self._muon.step(self.recipe.muon_rate * rate)
        for group in self._adam.param_groups:
            group["lr"] = self.recipe.adam_rate * rate
        self._adam.step()
        with torch.no_grad():
            for parameter, weight in zip(live, self.weights, strict=True):
                parameter.copy_(weight)
        value = float(loss.item())
        self.loss = value if self.loss is None else 0.95 * self.loss + 0.05 * value
        self.steps += 1
        self.tokens += batch.num_tokens
        self.seconds += time.perf_counter() - start
        self.position = batch.after
        return value

    def _rate(self) -> float:
        """Return the factor of both learning rates: warm-up, plateau, then down to `LOWEST_RATE`."""
        warm = min(1.0, (self.steps + 1) / WARM_UP_STEPS)
        progress = self.progress()
        return warm if progress < DECAY_FROM else warm * max(LOWEST_RATE, (1 - progress) / (1 - DECAY_FROM))

    def finished(self) -> Network:
        """Return the network with the float32 weights."""
        network = Network(self.shape)
        with torch.no_grad():
            for parameter, weight in zip(network.parameters(), self.weights, strict=True):
                parameter.copy_(weight)
        return network

    def save(self, path: Path) -> None:
        """Write everything needed to resume, atomically."""
        state = {
            "recipe": asdict(self.recipe),
            "weights": self.weights,
            "muon": self._muon.state_dict(),
            "adam": self._adam.state_dict(),
            "counts": (self.steps, self.tokens, self.seconds, self.loss, asdict(self.position)),
        }
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(path)

    def load(self, path: Path) -> None:
        """Resume from `path`. Raises `ValueError` if it has another recipe (more time or tokens are fine)."""
        state: dict[str, Any] = torch.load(path, weights_only=True)
        for name, value in asdict(self.recipe).items():
            if name not in ("tokens", "minutes") and state["recipe"][name] != value:
                raise ValueError(f"{path} was made with {name}={state['recipe'][name]!r}, not {value!r}")
        for mine, saved in zip(self.weights, state["weights"], strict=True):
            mine.copy_(saved)
        with torch.no_grad():
            for parameter, weight in zip(self.network.parameters(), self.weights, strict=True):
                parameter.copy_(weight)
        self._muon.load_state_dict(state["muon"])
        self._adam.load_state_dict(state["adam"])
        self.steps, self.tokens, self.seconds, self.loss, position = state["counts"]
        self.position = Position(**position)


def train(recipe: Recipe, out: Path, *, save_every: float = 300.0, stop_after_steps: int | None = None) -> Trainer:
    """Train into the folder `out`, resuming from a checkpoint there, and leave the model there.

    `save_every`: seconds between checkpoints. `stop_after_steps`: end early, with a checkpoint instead of a model.
    """
    out.mkdir(parents=True, exist_ok=True)
    checkpoint = out / "checkpoint.pt"
    tokenizer = _tokenizer(recipe, out)
    trainer = Trainer(recipe, len(tokenizer))
    if checkpoint.exists():
        trainer.load(checkpoint)
    saved = time.monotonic()
    with (out / "log.jsonl").open("a", encoding="utf-8") as log:
        stream = batches(
            tokenizer,
            recipe.seed,
            pool_samples=recipe.pool_samples,
            max_tokens=recipe.batch_tokens,
            start=trainer.position,
        )
        for batch in stream:
            if trainer.progress() >= 1 or trainer.steps == stop_after_steps:
                break
            trainer.step(batch)
            if trainer.steps % LOG_EVERY == 0:
                print(json.dumps(_summary(trainer)), file=log, flush=True)
            if time.monotonic() - saved > save_every:
                trainer.save(checkpoint)
                saved = time.monotonic()
    if trainer.progress() < 1:
        trainer.save(checkpoint)
    else:
        export(trainer.finished()).bfloat16().save_pretrained(out)
        checkpoint.unlink(missing_ok=True)
    return trainer


def _tokenizer(recipe: Recipe, out: Path) -> PreTrainedTokenizerFast:
    if not (out / "tokenizer.json").exists():
        if recipe.start is None:
            pairs = texts(recipe.seed, -1, TOKENIZER_SAMPLES)
            train_tokenizer(prompt + answer for prompt, answer in pairs).save_pretrained(out)
        else:
            AutoTokenizer.from_pretrained(recipe.start).save_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return tokenizer


def _summary(trainer: Trainer) -> dict[str, float | None]:
    return {
        "steps": trainer.steps,
        "tokens": trainer.tokens,
        "loss": trainer.loss and round(trainer.loss, 4),
        "seconds": round(trainer.seconds),
        "tokens_per_second": round(trainer.tokens / trainer.seconds),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m guideway_demo_model.training.train", description=train.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the model and its checkpoints")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--start", metavar="FOLDER", help="a model to begin with")
    defaults = Recipe()
    for name in ("batch_tokens", "pool_samples", "hidden", "layers", "intermediate", "kv_heads", "seed"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(defaults, name))
    for name in ("tokens", "minutes", "muon_rate", "adam_rate"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=getattr(defaults, name))
    options = vars(parser.parse_args(arguments))
    out: Path = options.pop("out")
    torch.set_num_threads(options.pop("threads"))
    trainer = train(Recipe(**options), out)
    sys.stdout.write(json.dumps(_summary(trainer)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
