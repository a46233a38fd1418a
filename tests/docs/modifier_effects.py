"""What ``docs/modifiers.md`` shows of the contributed modifiers: ``docs/modifiers.svg``, the distribution of one step
before and after each of them, and the table of devices that give the same tokens.

``python -m tests.docs.modifier_effects`` writes both. Each distribution is computed by the runtime and the pipeline;
those of modifiers that draw are counted over many seeds or keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from guideway.api import (
    Array,
    LogitModifier,
    ModifierContext,
    Need,
    Payload,
    Request,
    Sampler,
    SamplingParams,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    Vocabulary,
    WorkerContext,
)
from guideway.devices.numpy.device import NumpyDevice
from guideway.pipeline import Pipeline
from guideway.runtime.runtime import Runtime
from guideway_cfg import Cfg
from guideway_hello import Hello
from guideway_repetition import Dry, NoRepeatNgram
from guideway_sampling import DynamicTemperature, Mirostat, PLess, TopNSigma, Xtc
from guideway_steering import Steering
from guideway_watermark import GumbelMax, Kgw
from numpy.typing import NDArray

from tests.across.test_contributed_modifiers import DEVICES, WISHES, generate, on_numpy
from tests.support.fake_host import OFFERS

DOCS = Path(__file__).parents[2] / "docs"
PICTURE, PAGE = DOCS / "modifiers.svg", DOCS / "modifiers.md"

TOKENS = "abcdefghij"
VOCABULARY = Vocabulary(tokens=[*(letter.encode() for letter in TOKENS), b""], stop_token_ids=frozenset({len(TOKENS)}))
SIZE = len(VOCABULARY)
BEFORE = np.array([0.16, 0.24, 0.05, 0.2, 0.08, 0.03, 0.12, 0.06, 0.02, 0.03, 0.01])
AFTER_SECOND_PROMPT = np.array([0.3, 0.1, 0.05, 0.05, 0.05, 0.05, 0.1, 0.12, 0.08, 0.09, 0.01])
PROMPT = tuple(TOKENS.index(letter) for letter in "cabca")
SHOWN: Mapping[type[LogitModifier[Any]], tuple[dict[str, Any], str]] = {
    Dry: ({"multiplier": 1.5, "allowed_length": 1}, "the text is “cabca”"),
    Kgw: ({"key": 3, "gamma": 0.5, "delta": 1.0}, "raises the green tokens after “a”"),
    Steering: ({"probe": "p", "strength": 2.0}, "the probe lowers a, b, c"),
    Cfg: ({"negative_prompt": [1], "scale": 1.5}, "away from a second prompt"),
    Hello: ({"letter": "d", "strength": -1.5}, "lowers tokens with “d”"),
    NoRepeatNgram: ({"ngram_size": 2}, "“ab” was written before"),
    TopNSigma: ({"n": 1.0}, "within 1 standard deviation"),
    Xtc: ({"threshold": 0.1, "probability": 1}, "in one half of the steps"),
    PLess: ({}, "at least as likely as two equal draws"),
    DynamicTemperature: ({"least": 0.5, "most": 2.5}, "uncertain, so flatter"),
    Mirostat: ({"target": 1.5}, "at most 3 bits of surprise"),
    GumbelMax: ({"key": 1}, "over all keys, no change"),
}
"""By modifier its wish, and what the panel says."""
OPTIONS = {"steering": {"probes": {"p": {"weight": [4.0], "token_ids": [0, 1, 2]}}}}
ROWS, DRAWS = 64, 8192


class RevealSampler(Sampler):
    """Emits the log-probabilities that it gets."""

    emits: ClassVar = {"logprobs": ((SIZE,), "float32")}

    def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
        own = step.ops.gather(logprobs, payload.rows)
        step.emit("logprobs", own)
        return step.ops.argmax(own)


class Reveal(LogitModifier[bool]):
    """Shows the distribution that a token is drawn from."""

    contract, name, stage, transform = "1.0", "reveal", Stage.SAMPLE, RevealSampler
    needs = frozenset({Need.FEEDBACK})

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> bool | None:
        return True if self.name in request.params.modifiers else None

    def prepare(self, batch: StepBatch, states: Sequence[bool | None]) -> Payload | None:
        return Payload(batch.select(states)[0])


def effect(cls: type[LogitModifier[Any]]) -> NDArray[np.float64]:
    """Return ``[SIZE]``: the distribution of the next token with the modifier."""
    wish = SHOWN[cls][0]
    if cls.stage is not Stage.SAMPLE:
        return np.exp(step_of([cls, Reveal], [{cls.name: wish, "reveal": {}}], seed=0)[0][0].astype(np.float64))
    counts = np.zeros(SIZE)
    for start in range(0, DRAWS, ROWS):
        wishes = [{cls.name: wish | ({"key": start + i} if "key" in wish else {})} for i in range(ROWS)]
        counts += np.bincount(step_of([cls], wishes, seed=start)[1], minlength=SIZE)
    return counts / DRAWS


def step_of(
    classes: Sequence[type[LogitModifier[Any]]], wishes: Sequence[dict[str, Any]], seed: int
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Return the log-probabilities of one step and the drawn tokens, with a sequence for each of `wishes`."""
    context = ModifierContext(vocabulary=VOCABULARY, max_num_sequences=1 + len(wishes), max_model_len=64)
    modifiers = [cls(OPTIONS.get(cls.name, {}), context) for cls in classes]
    runtime = Runtime(context, strategies={}, modifiers=modifiers, offers=OFFERS)
    device = NumpyDevice("cpu")
    worker = WorkerContext(device=device, vocabulary_size=SIZE, logits_width=SIZE)
    pipeline = Pipeline([(cls, OPTIONS.get(cls.name, {})) for cls in classes], worker)
    num_companions = 0
    for slot, wish in enumerate(wishes):
        params = SamplingParams(temperature=1.0, seed=seed + slot, modifiers=wish)
        admission = runtime.admit(Request(request_id=str(slot), prompt_token_ids=PROMPT, params=params))
        admission.wait()
        runtime.start(admission, slot)
        num_companions += len(admission.companions)
    step = runtime.prepare(StepBatch.build(list(range(len(wishes))), [len(PROMPT)] * len(wishes)))
    rows = np.log(np.array([BEFORE] * len(wishes) + [AFTER_SECOND_PROMPT] * num_companions, dtype=np.float32))
    output = pipeline.run(rows, step, hidden_states=np.ones((len(rows), 1), dtype=np.float32))
    pipeline.close()
    runtime.close()
    assert not output.faults, output.faults
    found = output.feedback["reveal"].arrays["logprobs"] if Reveal in classes else np.empty(0)
    return found, output.token_ids


COLUMNS, WIDTH, HEIGHT, BAR, TALL = 3, 240, 118, 19, 56
"""Panels in a row, their size, and the width and largest height of bars, in pixels."""


def picture() -> str:
    """Return the picture as SVG."""
    rows = -(-len(SHOWN) // COLUMNS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS * WIDTH} {rows * HEIGHT}" font-size="11" '
        'font-family="sans-serif">',
        "<title>The distribution of one step before (light) and after (dark) each modifier</title>",
        f'<rect width="{COLUMNS * WIDTH}" height="{rows * HEIGHT}" fill="white"/>',
    ]
    for number, (cls, (_, said)) in enumerate(SHOWN.items()):
        x, y = number % COLUMNS * WIDTH + 12, number // COLUMNS * HEIGHT + 16
        after = effect(cls)
        scale = TALL / max(BEFORE.max(), after.max())
        parts.append(f'<g transform="translate({x} {y})">')
        parts.append(f'<text font-weight="bold">{cls.name}</text><text y="14" fill="#555">{said}</text>')
        for i, letter in enumerate([*TOKENS, "·"]):
            for share, left, fill in ((BEFORE[i], 0, "#b9c6d6"), (after[i], 7, "#1f4e79")):
                tall = round(float(share * scale), 1)
                place = f'x="{i * BAR + left}" y="{20 + TALL - tall:.1f}" width="7" height="{tall:.1f}"'
                parts.append(f'<rect {place} fill="{fill}"/>')
            parts.append(f'<text x="{i * BAR + 4}" y="{TALL + 33}">{letter}</text>')
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def device_rows() -> str:
    """Return the table of the devices on which each modifier gives the tokens that it gives with NumPy."""
    lines = [f"| modifier | numpy | {' | '.join(DEVICES)} |", "|---" * (len(DEVICES) + 2) + "|"]
    devices = [backend("cpu") for backend in DEVICES.values()]
    for cls in WISHES:
        classes = [cls] if cls.stage is Stage.SAMPLE else [cls, GumbelMax]  # devices may draw by methods of their own
        expected = on_numpy(*classes).token_ids
        same = ["✓" if generate(device, classes).token_ids == expected else "other" for device in devices]
        lines.append(f"| `{cls.name}` | ✓ | {' | '.join(same)} |")
    return "\n".join(lines)


BEGIN, END = "<!-- devices: made by python -m tests.docs.modifier_effects -->\n", "<!-- end of devices -->\n"


def table(page: str) -> str:
    """Return the table of devices in the page."""
    return page.partition(BEGIN)[2].partition(END)[0].strip()


def main() -> None:
    PICTURE.write_text(picture(), encoding="utf-8")
    page = PAGE.read_text("utf-8")
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{device_rows()}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
