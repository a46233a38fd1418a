"""guideway still writes every message in the headings of ``docs/troubleshooting.md``."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import guideway_demo_model
import pytest
from guideway import (
    Engine,
    GuidewayError,
    JsonSchema,
    Limits,
    PluginSettings,
    Regex,
    SamplingParams,
)
from guideway.command_line.program import main
from guideway.plugins import Plugins
from guideway_engine.command_line.lines import Lines
from guideway_vllm.config import GuestConfig
from pydantic import BaseModel, field_validator

from tests.docs.blocks import ROOT
from tests.support.distributions import install

HEADINGS = re.findall(r"^### `(.*)`$", (ROOT / "docs/troubleshooting.md").read_text("utf-8"), re.MULTILINE)
IN_VLLM = {"guideway-vllm cannot run in vLLM"}
"""Messages of a process with vLLM; `tests.vllm.test_troubleshooting_in_vllm` produces them."""

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
DIGIT = {"type": "integer", "maximum": 9, "minimum": 0}
PAIR = {"type": "array", "items": DIGIT, "maxItems": 9, "contains": {"const": 3}}
LARGE = {"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": 300} for i in range(60)}}


def says(heading: str, message: str) -> bool:
    """Return whether `message` contains the quote in `heading`, in which ``...`` stands for anything."""
    return re.search(".*".join(map(re.escape, heading.split("..."))), message, re.DOTALL) is not None


class P(BaseModel):
    a: bool

    @field_validator("a")
    @classmethod
    def never(cls, value: bool) -> bool:
        raise ValueError(f"{value} is too odd")


def model_folder(folder: Path, change: Callable[[Path], object]) -> str:
    """Return a copy of the demo model's folder, after `change`."""
    weights = Path(guideway_demo_model.__file__).parent / "weights"
    shutil.copytree(weights, folder / "model")
    change(folder / "model")
    return str(folder / "model")


def set_json(name: str, **values: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), encoding="utf-8")

    return change


STARTS: dict[str, Callable[[Path], object]] = {
    "no folder": lambda _: Engine("./no/such/folder"),
    "a name on a hub": lambda _: Engine("Qwen/Qwen3-0.6B"),
    "an empty folder": lambda tmp: Engine(str(tmp)),
    "no weights": lambda tmp: Engine(model_folder(tmp, lambda here: (here / "model.safetensors").unlink())),
    "no tokenizer": lambda tmp: Engine(model_folder(tmp, lambda here: (here / "tokenizer.json").unlink())),
    "a decoder of words": lambda tmp: Engine(
        model_folder(tmp, set_json("tokenizer.json", decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}))
    ),
    "an encoder": lambda tmp: Engine(
        model_folder(tmp, set_json("config.json", architectures=["BertModel"], model_type="bert")), workflow="decode"
    ),
    "no GPU": lambda _: Engine("demo", device="cuda:63"),
    "a misspelt strategy": lambda _: Engine("demo", grammar=("llguidanse",)),
    "a device as a strategy": lambda _: Engine("demo", grammar=("triton",)),
    "a strategy of vLLM": lambda _: Engine("demo", grammar=("vllm_xgrammar",)),
    "denied": lambda _: Engine("demo", grammar=("xgrammar",), plugins=PluginSettings(deny=("*/grammar.xgrammar",))),
    "not certified": lambda tmp: Engine("demo", plugins=PluginSettings(require="certified", lock=str(tmp / "no.lock"))),
    "options of another": lambda _: Engine("demo", grammar=("xgrammar",), options={"grammar.llguidance": {"a": 1}}),
    "an unknown option": lambda _: Engine("demo", grammar=("xgrammar",), options={"grammar.xgrammar": {"a": 1}}),
    "a long context": lambda _: Engine("demo", max_model_len=100_000),
    "a small cache": lambda _: Engine("demo", kv_cache_tokens=16),
}


def ask(engine: Engine, prompt: Any = "Anna Berg is 34.", **params: Any) -> Callable[[Path], str]:
    """Return a function that returns the engine's error for a request, or its unenforced keywords."""

    def asked(_: Path) -> str:
        (result,) = engine.generate([prompt], SamplingParams(**{"max_tokens": 40} | params))
        return str(result.error) if result.error else f"unenforced: {', '.join(result.unenforced)}"

    return asked


def slow(_: Path) -> str:
    with Engine("demo", grammar=("xgrammar",), limits=Limits(compile_seconds=0.02, wall_factor=5000)) as engine:
        return ask(engine, constraint=JsonSchema(LARGE))(Path())


def broken_processor(token_ids: list[int], logits: Any) -> Any:
    """Act as a third party's logits processor that fails."""
    raise ZeroDivisionError(len(token_ids))


def failing(_: Path) -> str:
    processor = {"kind": "callable", "target": f"{__name__}:broken_processor"}
    options = {"modifier.legacy": {"processors": [processor]}}
    with Engine("demo", modifiers=("legacy",), options=options) as engine:
        return ask(engine, modifiers={"legacy": {}})(Path())


def full(_: Path) -> None:
    with Engine("demo", max_num_seqs=1, max_waiting=1) as engine:
        for _ in range(4):
            engine.submit("x", SamplingParams(max_tokens=50), wait=False)


def closed(_: Path) -> None:
    with Engine("demo") as engine:
        pass
    engine.generate(["x"])


def guest(**config: Any) -> Callable[[Path], object]:
    """Return a function that reads ``--additional-config`` like guideway in vLLM."""
    vllm_config = SimpleNamespace(
        additional_config=config,
        device_config=SimpleNamespace(device_type="cpu"),
        parallel_config=SimpleNamespace(worker_extension_cls=""),
        speculative_config=None,
    )

    def read(_: Path) -> None:
        found = GuestConfig.of(vllm_config)
        assert found is not None
        found.plan(Plugins(settings=found.plugins))

    return read


def command(_: Path) -> str:
    said = io.StringIO()
    with redirect_stderr(said):
        assert main(["generate", "--model", "demo", "--prompt", "x", "--max-token", "3"]) == 2
    return said.getvalue()


def exits(tmp: Path) -> str:
    install(tmp / "installed", "exits", {"grammar.exits": "exits_at_once"})
    (tmp / "installed" / "exits_at_once.py").write_text("import os\nos._exit(1)\n", "utf-8")
    said = io.StringIO()
    sys.path.insert(0, str(tmp / "installed"))
    try:
        with redirect_stderr(said):
            assert main(["inspect", "--model", "demo", "--regex", "a", "--strategy", "exits"]) == 2
    finally:
        sys.path.remove(str(tmp / "installed"))
    return said.getvalue()


def answers_in_use(tmp: Path) -> None:
    with Lines(str(tmp / "answers.jsonl")):
        Lines(str(tmp / "answers.jsonl"))


def answered_twice(tmp: Path) -> None:
    (tmp / "answers.jsonl").write_text('{"id": "a", "finish_reason": "stop"}\n' * 2, "utf-8")
    Lines(str(tmp / "answers.jsonl"), resume=True)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine("demo", grammar=("llguidance", "xgrammar"), max_num_seqs=4) as engine:
        yield engine


def scenarios(engine: Engine) -> dict[str, Callable[[Path], object]]:
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"type": "array", "items": deep}
    whole = [{"role": "user", "content": "Extract name, age. Meet Zoë Garcia. Age: 31."}]
    return STARTS | {
        "a small budget": ask(engine, max_tokens=4, constraint=JsonSchema(PERSON)),
        "a long prompt": ask(engine, "x " * 5000),
        "no such type": ask(engine, constraint=JsonSchema({"type": "strin"})),
        "no such reference": ask(engine, constraint=JsonSchema({"$ref": "#/$defs/x"})),
        "no JSON": ask(engine, constraint=JsonSchema("{'type': 'string'}")),
        "one strategy": ask(engine, constraint=JsonSchema(PAIR, strategy="llguidance")),
        "look-around": ask(engine, constraint=Regex("(?=a)b")),
        "an escape of Python": ask(engine, constraint=Regex(r"\N{DIGIT ONE}")),
        "refuse": ask(engine, constraint=JsonSchema(PAIR), on_unenforced="refuse"),
        "a strategy that is not there": ask(engine, constraint=Regex("a", strategy="outlines")),
        "a modifier that is not there": ask(engine, modifiers={"hello": {"letter": "g"}}),
        "too deep": ask(engine, constraint=JsonSchema(deep)),
        "no end": ask(engine, ignore_eos=True, constraint=JsonSchema(PERSON)),
        "unenforced": ask(engine, constraint=JsonSchema(PAIR)),
        "misspelt": ask(engine, whole, constraint=JsonSchema(PERSON | {"propertys": {}})),
        "a stop string": ask(engine, whole, constraint=JsonSchema(PERSON), stop=":"),
        "no way to an end": ask(engine, constraint=Regex("(a|aa)+" * 40)),
        "a validator": lambda _: engine.generate(["x"], SamplingParams(max_tokens=40, constraint=P))[0].parsed,
        "counts": lambda _: engine.generate(["x"], [SamplingParams(), SamplingParams()]),
        "slow to compile": slow,
        "a broken processor": failing,
        "a full queue": full,
        "a closed engine": closed,
        "a misspelt option": command,
        "a plugin that exits": exits,
        "answers in use": answers_in_use,
        "answered twice": answered_twice,
        "a misspelt key": guest(guidway={}),
        "a misspelt setting": guest(guideway={"gramar": ["llguidance"]}),
        "mixins": guest(guideway={"grammar": ["llguidance"], "worker_mixins": ["layer_timing"]}),
    }


@pytest.mark.slow
def test_every_heading_is_a_message_and_every_message_has_one(engine: Engine, tmp_path: Path) -> None:
    found: dict[str, str] = {}
    for number, (name, scenario) in enumerate(scenarios(engine).items()):
        (tmp_path / str(number)).mkdir()
        try:
            found[name] = str(scenario(tmp_path / str(number)))
        except GuidewayError as error:
            found[name] = str(error)
    silent = {name: said for name, said in found.items() if not any(says(heading, said) for heading in HEADINGS)}
    assert not silent, "the page has no heading for these"
    never = {heading for heading in HEADINGS if not any(says(heading, said) for said in found.values())}
    assert never == IN_VLLM, "nothing says these"


def test_headings_are_told_apart() -> None:
    assert len(HEADINGS) == len(set(HEADINGS)) > 30
    assert says("there are ... prompts", "there are 3 prompts but 2 params")
    assert not says("there are ... prompts", "there is 1 prompt")
