"""The cost of the contributed modifiers in the scheduler's process, per step, row and modifier.

64 sequences without a constraint, all of which select the same modifiers: each one alone, and ten on one request. A
figure is what `Runtime.prepare` and `Runtime.accept` take with them, less what they take without, divided by the rows
and the number of modifiers. The tokens of the texts are drawn by Zipf's law, so that they repeat. One thread, CPU time,
the variants interleaved; each figure is the median over repeats of the mean over steps.

    python tests/benchmarks/bench_modifiers.py [--write]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from guideway.api import Feedback, LogitModifier, ModifierContext, Payload, Request, SamplingParams, StepBatch
from guideway.api.steps import StepOutput
from guideway.api.vocabulary import Vocabulary
from guideway.runtime.runtime import Runtime
from guideway_cfg import Cfg
from guideway_healing import Healing
from guideway_hello import Hello
from guideway_repetition import Dry, NoRepeatNgram
from guideway_sampling import DynamicTemperature, Mirostat, PLess, TopNSigma, Xtc
from guideway_steering import Steering
from guideway_watermark import GumbelMax, Kgw

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.fake_host import OFFERS

NUM_TOKENS = 32_768
ROWS, STEPS, REPEATS = 64, 100, 9
PROMPT_LENGTH = 200
ASKED = 2.0
"""Most microseconds per row and modifier."""
RESULTS = Path(__file__).parent / "results" / "modifiers.md"
PROBE = {"weight": [0.1] * 64, "token_ids": list(range(0, 1000, 3))}
WISHES: dict[type[LogitModifier[Any]], dict[str, Any]] = {
    Kgw: {"key": 5},
    Dry: {},
    Xtc: {},
    TopNSigma: {},
    PLess: {},
    Cfg: {"negative_prompt": [1, 2]},
    Steering: {"probe": "p"},
    Hello: {"letter": "e"},
    Healing: {"tokens": 2},
    NoRepeatNgram: {"ngram_size": 3},
    DynamicTemperature: {},
    Mirostat: {},
    GumbelMax: {"key": 5},
}
TEN = (Kgw, Dry, Xtc, TopNSigma, PLess, Cfg, Steering, Hello, Healing)
"""With a bias, which is a sampling parameter."""
BIAS = {7: 1.0, 9: -2.0}


def steps_of(
    classes: Sequence[type[LogitModifier[Any]]], vocabulary: Vocabulary, *, bias: bool = False, **changed: Any
) -> Callable[[], float]:
    """Return a function that runs `STEPS` steps and returns the CPU microseconds of each. `changed` replaces wishes of
    `WISHES`, by the modifier's name."""
    context = ModifierContext(vocabulary=vocabulary, max_num_sequences=ROWS, max_model_len=1 << 20)
    options = {"steering": {"probes": {"p": PROBE}}}
    modifiers = [cls(options.get(cls.name, {}), context) for cls in classes]
    runtime = Runtime(context, strategies={}, modifiers=modifiers, offers=OFFERS)
    draw = np.random.default_rng(1)

    def texts(length: int) -> list[list[int]]:
        return (draw.zipf(1.2, size=(ROWS, length)) % NUM_TOKENS).tolist()  # type: ignore[no-any-return]

    params = SamplingParams(
        temperature=1.0, modifiers={cls.name: WISHES[cls] for cls in classes} | changed, logit_bias=BIAS if bias else {}
    )
    for slot, prompt in enumerate(texts(PROMPT_LENGTH)):
        admission = runtime.admit(Request(request_id=str(slot), prompt_token_ids=tuple(prompt), params=params))
        admission.wait()
        runtime.start(admission, slot)
    surprise: Feedback = {"surprise": np.full(ROWS, 4.0, dtype=np.float32)}
    feedback = {"mirostat": Payload(np.arange(ROWS, dtype=np.int32), surprise)} if Mirostat in classes else {}
    output = StepOutput(np.zeros(ROWS, dtype=np.int32), feedback)
    position = PROMPT_LENGTH

    def run() -> float:
        nonlocal position
        drawn = [[[token_id] for token_id in column] for column in np.array(texts(STEPS)).T.tolist()]
        start = time.process_time()
        for token_ids in drawn:
            batch = StepBatch.build(list(range(ROWS)), [position] * ROWS)
            runtime.prepare(batch)
            runtime.accept(batch, token_ids, output)
            position += 1
        return (time.process_time() - start) / STEPS * 1e6

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    vocabulary = Vocabulary(
        tokens=[b"%d" % i for i in range(NUM_TOKENS - 1)] + [b""], stop_token_ids=frozenset({NUM_TOKENS - 1})
    )
    cases = {cls.name: (steps_of([cls], vocabulary), 1) for cls in WISHES}
    single = steps_of([NoRepeatNgram], vocabulary, no_repeat_ngram={"ngram_size": 1})
    cases["no_repeat_ngram of single tokens"] = (single, 1)
    cases["those above the line and a bias, together"] = (steps_of(TEN, vocabulary, bias=True), len(TEN) + 1)
    none, samples = steps_of([], vocabulary), {name: list[float]() for name in ("", *cases)}
    for _ in range(REPEATS):
        samples[""].append(none())
        for name, (run, _) in cases.items():
            samples[name].append(run())
    base = statistics.median(samples[""])
    lines = [
        "# The scheduler's side of the contributed modifiers",
        "",
        f"`python tests/benchmarks/bench_modifiers.py --write`; {ROWS} rows, {STEPS} steps x {REPEATS} repeats, CPU "
        f"time of one thread. Asked: at most {ASKED:g} us per row and modifier. A step without modifiers: "
        f"{base / ROWS:.2f} us per row.",
        "",
        f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}.",
        "",
        "| modifiers | us per row and modifier | least of the repeats |",
        "|---|---|---|",
    ]
    for name, (_, count) in cases.items():
        cost = (statistics.median(samples[name]) - base) / ROWS / count
        least = (min(samples[name]) - min(samples[""])) / ROWS / count
        lines.append(f"| {name} | {cost:.2f} | {least:.2f} |")
    print("\n".join(lines))
    if arguments.write:
        RESULTS.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
