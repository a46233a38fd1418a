"""``python -m guideway_demo_ranker.training.train --out FOLDER``: train the demo ranker on a CPU.

FOLDER gets the model as ``transformers`` loads it, and ``log.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from transformers import BertForSequenceClassification, PreTrainedTokenizerFast

from guideway_demo_ranker.training.data import Ranking, Source
from guideway_demo_ranker.training.network import Hints, new_model
from guideway_demo_ranker.training.tokenizer import CONTEXT, train_tokenizer

__all__ = ["Recipe", "main", "train"]

WARM_UP_STEPS = 50
LOG_EVERY = 50
FILLERS = (0, 1, 2, 2, 4, 8)
"""Maximum irrelevant sentences per text, in turn, one entry per step: the texts of a step have similar lengths."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings that decide the outcome of a training run."""

    steps: int = 3000
    queries: int = 8
    """Queries per step."""
    documents: int = 8
    """Documents per query, one of which answers it."""
    hidden: int = 128
    layers: int = 2
    rate: float = 2e-3
    seed: int = 0
    tokenizer_queries: int = 4000
    """Queries, with their documents, that the tokenizer is trained on."""


def train(recipe: Recipe, out: Path) -> list[float]:
    """Train into the folder `out`, and leave the model there. Return the loss of each step, without the hints' loss.

    The loss has two parts: the softmax over the documents of a query, so that the right one is first, and the binary
    loss of every document, so that the sigmoid of a score is a probability.
    """
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(recipe.seed)
    tokenizer = train_tokenizer(_texts(recipe))
    model = new_model(len(tokenizer), hidden=recipe.hidden, layers=recipe.layers)
    hints = Hints(recipe.hidden)
    parameters = [*model.parameters(), *hints.parameters()]
    optimizer = torch.optim.AdamW(parameters, recipe.rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        recipe.rate,
        total_steps=recipe.steps,
        pct_start=min(0.5, WARM_UP_STEPS / recipe.steps),
        anneal_strategy="linear",
        cycle_momentum=False,
    )
    losses: list[float] = []
    began = time.monotonic()
    with (out / "log.jsonl").open("w", encoding="utf-8") as log:
        for rankings in _batches(recipe):
            loss, hint = _losses(model, hints, tokenizer, rankings)
            optimizer.zero_grad()
            (loss + hint).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            if len(losses) % LOG_EVERY == 0:
                mean = round(_mean(losses), 4)
                seconds = round(time.monotonic() - began)
                print(json.dumps({"steps": len(losses), "loss": mean, "seconds": seconds}), file=log, flush=True)
    model.half().save_pretrained(out)  # type: ignore[no-untyped-call]
    tokenizer.save_pretrained(out)
    return losses


def _mean(losses: list[float]) -> float:
    last = losses[-LOG_EVERY:]
    return sum(last) / len(last)


def _texts(recipe: Recipe) -> Iterator[str]:
    source = Source(f"tokenizer-{recipe.seed}", entities="train", wordings="train")
    for _ in range(recipe.tokenizer_queries):
        ranking = source.ranking(recipe.documents)
        yield ranking.query
        yield from ranking.documents


def _batches(recipe: Recipe) -> Iterator[list[Ranking]]:
    source = Source(f"train-{recipe.seed}", entities="train", wordings="train")
    for step in range(recipe.steps):
        max_fillers = FILLERS[step % len(FILLERS)]
        yield [source.ranking(recipe.documents, max_fillers) for _ in range(recipe.queries)]


def _losses(
    model: BertForSequenceClassification, hints: Hints, tokenizer: PreTrainedTokenizerFast, rankings: list[Ranking]
) -> tuple[Tensor, Tensor]:
    """Return the loss of the scores and the loss of the hints."""
    queries = [ranking.query for ranking in rankings for _ in ranking.documents]
    documents = [document for ranking in rankings for document in ranking.documents]
    inputs = tokenizer(
        queries, documents, padding=True, truncation="only_second", max_length=CONTEXT, return_tensors="pt"
    )
    output = model(**inputs, output_hidden_states=True)
    logits: Tensor = output.logits.view(len(rankings), -1)
    answers = torch.tensor([ranking.answer for ranking in rankings])
    right = nn.functional.one_hot(answers, logits.shape[1]).to(logits.dtype)
    balance = torch.tensor(float(logits.shape[1] - 1) ** 0.5)
    loss = cross_entropy(logits, answers) + binary_cross_entropy_with_logits(logits, right, pos_weight=balance)
    first, last = (output.hidden_states[layer][:, 0] for layer in (1, -1))
    return loss, hints(first, last, rankings)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m guideway_demo_ranker.training.train")
    parser.add_argument("--out", type=Path, required=True, help="folder of the model")
    parser.add_argument("--threads", type=int, default=1)
    defaults = Recipe()
    for name in ("steps", "queries", "documents", "hidden", "layers", "seed", "tokenizer_queries"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(defaults, name))
    parser.add_argument("--rate", type=float, default=defaults.rate)
    options = vars(parser.parse_args(arguments))
    out: Path = options.pop("out")
    torch.set_num_threads(options.pop("threads"))
    losses = train(Recipe(**options), out)
    sys.stdout.write(f"{len(losses)} steps, a loss of {_mean(losses):.4f} in the last\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
