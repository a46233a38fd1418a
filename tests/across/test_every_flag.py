"""Every flag of every command and every key of a line of input, through the program, with a right and a wrong value."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path
from select import select
from typing import Any

import pytest
import torch
from engine_support.encoders import encoder, stored
from engine_support.serving import Raw, post
from guideway import Engine
from guideway.command_line import commands
from guideway.command_line.program import main
from guideway_engine.command_line import generate, jobs, task_inputs, tasks
from guideway_engine.command_line.opening import open_engine
from guideway_engine.config import EngineConfig
from guideway_engine.config_sources import KEYS, Configuration
from guideway_engine.entries import LINE_KEYS
from guideway_engine.server.limits import Limits
from suite_support.packages import GOOD

from tests.support.processes import until

PROMPT = "Is Zoë Garcia married?"
ANSWER = '{"name":"Zoë Garcia","married":true}'
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ODD = {"type": "string", "contentEncoding": "base64"}
CONFIGURED = ("generate", "config show", "inspect", "embed", "rerank", "classify", "serve")


@dataclass
class Outcome:
    """What a command did."""

    status: int = 0
    out: str = ""
    err: str = ""
    configs: list[EngineConfig] = field(default_factory=list)
    """Configurations of the engines that it opened."""
    asked: dict[str, Any] = field(default_factory=dict)
    """Arguments that it gave to its engine."""

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Shared:
    """An engine that several commands use."""

    def __init__(self, engine: Engine, outcome: Outcome) -> None:
        self._engine = engine
        self._outcome = outcome

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def __enter__(self) -> Shared:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the engine open."""

    def generate(self, prompts: Any, params: Any, **more: Any) -> Any:
        self._outcome.asked = {"prompts": prompts, "params": params, **more}
        return self._engine.generate(prompts, params, **more)

    def run(self, task: str, inputs: Any, params: Any) -> Any:
        self._outcome.asked = {"params": params}
        return self._engine.run(task, inputs, params)


Run = Callable[..., Outcome]


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, Engine]]:
    """Engines by their configuration, closed at the end."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for each other cost more than a small model
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, threads)
        opened: dict[str, Engine] = {}
        stack.callback(lambda: [engine.close() for engine in opened.values()])
        yield opened


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    head = "ForSequenceClassification"
    return {
        "embed": str(stored(encoder("Bert"), folder / "embed")),
        "rerank": str(stored(encoder("Bert", head, num_labels=1), folder / "rerank")),
        "classify": str(stored(encoder("Bert", head, id2label={0: "no", 1: "yes"}), folder / "classify")),
        "serve": str(folder / "embed"),
    }


@pytest.fixture
def run(
    engines: dict[str, Engine],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Run:
    """Run a command in an empty folder, with shared engines."""
    monkeypatch.chdir(tmp_path)
    for name in ("GUIDEWAY_MODEL", "GUIDEWAY_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    outcome = Outcome()

    def share(configuration: Configuration) -> Shared:
        config = configuration.build(EngineConfig)
        outcome.configs.append(config)
        if repr(config) not in engines:
            engines[repr(config)] = open_engine(configuration)
        return Shared(engines[repr(config)], outcome)

    monkeypatch.setattr(generate, "open_engine", share)
    monkeypatch.setattr(tasks, "open_engine", share)

    def run_command(command: str, *arguments: str) -> Outcome:
        outcome.configs.clear()
        outcome.status = main([*command.split(), *arguments])
        outcome.out, outcome.err = capsys.readouterr()
        assert "Traceback" not in outcome.err
        return outcome

    return run_command


def parsers() -> dict[str, ArgumentParser]:
    """Return the parser of each command of guideway's own distributions."""
    top = ArgumentParser().add_subparsers()
    for command in commands.installed().values():
        if command.owner is not None and command.name != commands.HELP:
            command.add_to(top)
    found: dict[str, ArgumentParser] = {}

    def walk(name: str, parser: ArgumentParser) -> None:
        inner = [action for action in parser._actions if isinstance(action, _SubParsersAction)]
        for action in inner:
            for word, each in action.choices.items():
                walk(f"{name} {word}", each)
        if not inner:
            found[name] = parser

    for name, parser in top.choices.items():
        walk(name, parser)
    return found


def flags_of(command: str) -> dict[str, tuple[str, ...]]:
    """Return the flags of a command, by their first name, with all names."""
    return {
        action.option_strings[0]: tuple(action.option_strings)
        for action in parsers()[command]._actions
        if action.option_strings and action.dest != "help"
    }


Check = Callable[[Outcome], object]
TASKS = ("embed", "rerank", "classify")
BASE = {
    "generate": ["--model", "demo", "--prompt", PROMPT],
    "config show": [],
    "inspect": ["--model", "demo", "--regex", "ab", "--text", "ab", "--grammar", "llguidance"],
    "embed": ["--model", "absent", "--text", "w1"],
    "rerank": ["--model", "absent", "--query", "w1", "--text", "w2"],
    "classify": ["--model", "absent", "--text", "w1"],
    "serve": ["--model", "absent"],
}
"""Arguments in addition to the tested ones, unless these replace them."""


def text(outcome: Outcome) -> str:
    (line,) = outcome.lines
    return str(line["text"])


def token_ids(outcome: Outcome) -> list[int]:
    return [entry["token_id"] for entry in outcome.lines[0]["logprobs"]]


def with_base(command: str, arguments: str) -> list[str]:
    """Return arguments, and before them those of `BASE` whose flags they do not replace."""
    words = shlex.split(arguments)
    given = {word.partition("=")[0] for word in words}
    either: dict[str, set[str]] = {}
    for group in parsers()[command]._mutually_exclusive_groups:
        names = {name for action in group._group_actions for name in action.option_strings}
        either |= dict.fromkeys(names, names)
    base: list[str] = []
    pairs = BASE.get(command, [])
    for flag, value in zip(pairs[::2], pairs[1::2], strict=True):
        if not given & either.get(flag, {flag}):
            base += [flag, value]
    return [*base, *words]


# flags that a command has for itself -------------------------------------------------------------------------------

BIASED = "--max-tokens 3 --logprobs 0 --logit-bias 65=99"
SEEDED = "--max-tokens 3 --seed 7 --temperature 5"
GENERATED: dict[str, Check] = {
    "--prompt 'Is Tom married?' --max-tokens 3": lambda o: o.asked["prompts"][0][0]["content"] == "Is Tom married?",
    "--max-tokens 3": lambda o: o.lines[0]["num_tokens"] == 3 and ANSWER.startswith(text(o)),
    "--max-tokens 16 --min-tokens 16": lambda o: o.lines[0]["num_tokens"] == 16,
    "--max-tokens 16 --ignore-eos": lambda o: o.lines[0]["num_tokens"] == 16,
    SEEDED: lambda o: not ANSWER.startswith(text(o)),
    f"{SEEDED} --top-k 1": lambda o: ANSWER.startswith(text(o)),
    f"{SEEDED} --top-p 0.01": lambda o: ANSWER.startswith(text(o)),
    f"{SEEDED} --min-p 0.99": lambda o: ANSWER.startswith(text(o)),
    f"{SEEDED} --typical-p 0.01": lambda o: o.asked["params"][0].typical_p == 0.01 and len(text(o)) > 3,
    "--max-tokens 4 --repetition-penalty 9": lambda o: not ANSWER.startswith(text(o)),
    f"{BIASED} --frequency-penalty 99": lambda o: token_ids(o).count(65) == 1,
    f"{BIASED} --presence-penalty 99": lambda o: token_ids(o).count(65) == 1,
    f"{BIASED} --logit-bias 66=-inf": lambda o: token_ids(o) == [65, 65, 65],
    "--max-tokens 2 --n 2 --temperature 1": lambda o: [each["index"] for each in o.lines[0]["outputs"]] == [0, 1],
    "--max-tokens 2 --best-of 3 --temperature 1": lambda o: o.asked["params"][0].best_of == 3,
    "--max-tokens 1 --logprobs 2": lambda o: len(o.lines[0]["logprobs"][0]["top"]) == 2,
    f"{BIASED} --logprobs-mode processed": lambda o: o.lines[0]["logprobs"][0]["logprob"] > -0.001,
    "--max-tokens 3 --records": lambda o: len(o.lines[0]["records"]["pressure"]) == 3,
    "--max-tokens 1 --prompt-logprobs 1": lambda o: len(o.lines[0]["prompt_logprobs"]) > 5,
    "--max-tokens 1 --echo": lambda o: text(o).startswith(PROMPT),
    "--max-tokens 9 --stop Zoë": lambda o: (text(o), o.lines[0]["stop"]) == ('{"name":"', "Zoë"),
    "--max-tokens 9 --stop-token-ids 306": lambda o: o.lines[0]["stop"] == 306,
    "--max-tokens 1 --priority -3": lambda o: o.asked["params"][0].priority == -3,
    "--max-tokens 1 --tenant acme": lambda o: o.asked["tenants"] == ["acme"],
    "--max-tokens 1 --raw": lambda o: o.asked["prompts"] == [PROMPT],
    "--temperature 1 --max-retries 2 --on-unenforced check --choice a": lambda o: o.lines[0]["valid"] is True,
    f"--no-close --max-tokens 3 --schema '{json.dumps(NAME)}'": lambda o: o.lines[0]["finish_reason"] == "length",
    f"--close --max-tokens 9 --schema '{json.dumps(NAME)}'": lambda o: "name" in json.loads(text(o)),
    "--max-tokens 6 --reasoning --reasoning-end-str Zoë": lambda o: o.lines[0]["num_reasoning_tokens"] > 0,
    "--max-tokens 6 --no-reasoning --reasoning-end-str Zoë": lambda o: o.lines[0]["num_reasoning_tokens"] == 0,
    "--max-tokens 9 --reasoning --reasoning-end-str ab --thinking-token-budget 1": lambda o: (
        o.lines[0]["num_reasoning_tokens"] > 0
    ),
    "--choice yes --choice no": lambda o: text(o) in ("yes", "no"),
    "--regex '[0-9]{2}'": lambda o: re.fullmatch("[0-9]{2}", text(o)),
    "--grammar-file lark=a.lark": lambda o: text(o) == "ab",
    "--regex a --record": lambda o: o.lines[0]["constraint"] == {"regex": "a"} and o.lines[0]["token_ids"],
    "--max-tokens 1 --json": lambda o: o.lines[0]["id"] == "0",
    "--max-tokens 1 --output new.jsonl": lambda o: o.out == "" and Path("new.jsonl").read_text().count("\n") == 1,
    "--max-tokens 1 --resume -o old.jsonl": lambda _: Path("old.jsonl").read_text().count("\n") == 1,
    "--max-tokens 1 --input in.jsonl": lambda o: [line["id"] for line in o.lines] == ["a"],
}
GENERATED_WRONG = {
    "--prompt \udc80": "contains a lone surrogate",
    "--input absent": "cannot read the input 'absent'",
    "--input - --schema -": "--input and --schema both read standard input",
    "--prompt a --input b": "not allowed with argument --prompt",
    "--json=x": "ignored explicit argument 'x'",
    "--output absent/a": "cannot write the output 'absent/a'",
    "--resume": "name it with --output",
    "--record=x": "ignored explicit argument 'x'",
    "--raw=x": "ignored explicit argument 'x'",
    f"--tenant {'x' * 300}": "tenant must be a string of at most 256 characters",
    "--max-tokens 0": "--max-tokens must be a whole number of at least 1",
    "--min-tokens 20 --max-tokens 3": "--min-tokens is 20, but may be at most --max-tokens",
    "--temperature -1": "--temperature must be 0 (greedy) or a number",
    "--top-k -2": "--top-k must be a whole number of at least 0",
    "--top-p 2": "--top-p must be a number above 0 and at most 1",
    "--min-p 2": "--min-p must be a number from 0 to 1",
    "--typical-p 0.5": "--typical-p has no effect at temperature 0",
    "--repetition-penalty 0": "--repetition-penalty must be a number from 0.001",
    "--frequency-penalty 1e9": "--frequency-penalty must be a number from -1000 to 1000",
    "--presence-penalty 1e9": "--presence-penalty must be a number from -1000 to 1000",
    "--logit-bias 5=nan": "--logit-bias of token 5 must be a number",
    "--seed -1": "--seed must be a whole number from 0",
    "--stop ''": "--stop must hold strings of at least one character",
    "--stop-token-ids 99999": "--stop-token-ids must be a list of token ids from 0 to 1535",
    "--ignore-eos=x": "ignored explicit argument 'x'",
    "--n 2": "--n is 2, but at temperature 0",
    "--best-of 0": "--best-of must be a whole number of at least 1",
    "--logprobs 9999": "--logprobs must be a whole number from 0 to 1000",
    "--logprobs 1 --logprobs-mode half": "argument --logprobs-mode: must be 'raw' or 'processed', not 'half'",
    "--records=x": "ignored explicit argument 'x'",
    "--prompt-logprobs -1": "--prompt-logprobs must be a whole number from 0",
    "--echo=x": "ignored explicit argument 'x'",
    "--priority 9999999999": "--priority must be a whole number from",
    "--max-retries 2 --temperature 1": "set --on-unenforced to 'check'",
    "--close=x": "ignored explicit argument 'x'",
    "--reasoning": "the end of reasoning is not configured",
    "--thinking-token-budget 0": "--thinking-token-budget must be a whole number of at least 1",
    "--schema absent.json": "cannot read the schema 'absent.json'",
    "--regex '('": "--regex is no regular expression",
    "--choice a --regex b": "not allowed with argument --choice",
    "--grammar-file a.lark": "must be DIALECT=FILE",
    "--modifier nosuch": "no modifier named 'nosuch' is installed",
    "--strict --on-unenforced check": "not allowed with argument --strict",
}
ENCODED_WRONG = {
    "--json=x": "ignored explicit argument 'x'",
    "--output absent/a": "cannot write the output 'absent/a'",
    "--resume": "name it with --output",
    "--truncate up": "invalid choice: 'up'",
    "--text a --input b": "not allowed with argument --text",
    "--input absent": "cannot read the input 'absent'",
    "--lines xml": "invalid choice: 'xml'",
}
WRONG: dict[str, dict[str, str]] = {
    "generate": GENERATED_WRONG,
    "config show": {
        "--json=x": "ignored explicit argument 'x'",
        "--modifier ''": "must be NAME or NAME={...}",
        "--strict=x": "ignored explicit argument 'x'",
    },
    "inspect": {
        "--text \udc80": "the text contains a lone surrogate",
        "--text-file absent": "cannot read the text_file 'absent'",
        "--token-ids x": "argument --token-ids: must be token ids separated by commas",
        "--token-ids 99999": "token id 99999 is not in the vocabulary",
        "--record absent": "cannot read the record 'absent'",
        "--id 1": "--id and --output-index need --record",
        "--output-index 1": "--id and --output-index need --record",
        "--record r.jsonl --id c": "r.jsonl: no record has the id 'c'",
        "--record r.jsonl --id b --output-index 7": "has no output 7; choose one with --output-index: 0, 1",
        "--schema absent": "cannot read the schema 'absent'",
        "--regex '('": "--regex is no regular expression",
        "--choice a --regex b": "not allowed with argument --choice",
        "--grammar-file a": "must be DIALECT=FILE",
        "--json=x": "ignored explicit argument 'x'",
        "--html absent/a.html": "cannot write 'absent/a.html'",
    },
    "embed": ENCODED_WRONG | {"--dimensions x": "must be a whole number of at least 1"},
    "rerank": ENCODED_WRONG | {"--query \udc80": "lone surrogate"},
    "classify": ENCODED_WRONG,
    "serve": {
        "--host 256.0.0.1": "cannot serve at '256.0.0.1'",
        "--port 99999": "argument --port: must be a number from 0 to 65535",
        "--name=": "--name must not be empty",
        "--grace 0": "argument --grace: must be a number of seconds",
        "--api-key ''": "--api-key (or GUIDEWAY_API_KEY) takes printable ASCII",
        "--allowed-hosts ''": "--allowed-hosts takes names and addresses",
        "--trust-clients=x": "argument --trust-clients: ignored explicit argument 'x'",
        **{
            f"--{name.replace('_', '-')} 0": f"argument --{name.replace('_', '-')}: must be a "
            f"{'number of seconds' if name.endswith('timeout') else 'whole number'}, at least 1, not '0'"
            for name in (limit.name for limit in fields(Limits))
        },
        "--max-connections 9 --max-requests 9": "max_connections is 9, and must be more than max_requests (9)",
    },
    "plugins list": {"--json=x": "ignored explicit argument", "--lock /dev/null": "/dev/null"},
    "plugins show": {"numpy --json=x": "ignored explicit argument", "numpy --lock /dev/null": "/dev/null"},
    "plugins doctor": {
        "--json=x": "ignored explicit argument",
        "--import=x": "ignored explicit argument",
        "--timeout 0": "invalid",
        "--lock /dev/null": "/dev/null",
    },
    "plugins lock": {"--json=x": "ignored explicit argument", "--file /dev/null": "/dev/null"},
    "plugins verify-lock": {
        "--json=x": "ignored explicit argument",
        "--strict=x": "ignored explicit argument",
        "--file absent": "absent",
    },
    "plugins new": {
        "device mine --json=x": "ignored explicit argument",
        "device mine --distribution '!'": "'!'",
        "device mine --folder /dev/null": "/dev/null",
    },
    "conform": {
        "--config absent": "absent",
        "device.numpy --contract 9": "9",
        "mine --up-to nosuch": "invalid choice: 'nosuch'",
        "mine --jobs 0": "must be at least 1",
        "mine --timeout-factor 0": "must be greater than 0",
        "device.numpy --report a --markdown a": "name the same file",
        "device.numpy --junit a --badge a": "name the same file",
        "mine --record=x": "ignored explicit argument",
        "device.numpy --lock x": "--record",
    },
    "coverage": {
        "absent": "'absent' cannot be read",
        "a.jsonl --strategy nosuch": "'nosuch'",
        "a.jsonl --jobs 0": "must be at least 1",
        "a.jsonl --seconds 0": "must be greater than 0",
        "a.jsonl --properties-order up": "invalid choice",
        "a.jsonl --strategy reference --output /dev/null": "/dev/null",
    },
    "conform matrix": {"absent --html a.html": "names a file", "absent --markdown absent": "name the same file"},
    "conform verify": {},
}

# flags of the configuration -----------------------------------------------------------------------------------------

SETTINGS: dict[str, tuple[str, Any, str, str]] = {
    "--model": ("demo", "demo", "absent", "no model named 'absent'"),
    "--workflow": ("guideway-engine/decode", "guideway-engine/decode", "nosuch", "no workflow named 'nosuch'"),
    "--grammar": ("xgrammar", ("xgrammar",), "nosuch", "no grammar named 'nosuch'"),
    "--worker-mixins": ("layer_timing", ("layer_timing",), "nosuch", "no worker named 'nosuch'"),
    "--device-backend": ("guideway/numpy", "guideway/numpy", "nosuch", "no device named 'nosuch'"),
    "--device": ("cpu", "cpu", "nosuch", "device type at start of device string: nosuch"),
    "--dtype": ("float64", "float64", "float31", "--dtype: dtype must be auto"),
    "--load-format": ("auto", "auto", "zip", "must be 'safetensors' or 'auto'"),
    "--runner": ("guideway-engine/transformers", "guideway-engine/transformers", "nosuch", "no runner named 'nosuch'"),
    "--executor": ("guideway-engine/local", "guideway-engine/local", "nosuch", "no executor named 'nosuch'"),
    "--max-num-seqs": ("3", 3, "0", "max_num_seqs must be a whole number of at least 1"),
    "--max-model-len": ("70", 70, "1", "max_model_len must be a whole number of at least 2"),
    "--kv-cache-tokens": ("512", 512, "1", "kv_cache_tokens must be a whole number of at least 2"),
    "--max-num-batched-tokens": ("64", 64, "0", "max_num_batched_tokens must be a whole number of at least 1"),
    "--enable-prefix-caching": ("no", False, "x", "ignored explicit argument"),
    "--isolate-tenants": ("yes", True, "x", "ignored explicit argument"),
    "--max-waiting": ("5", 5, "0", "max_waiting must be a whole number of at least 1"),
    "--num-speculative-tokens": ("2", 2, "-1", "num_speculative_tokens must be a whole number of at least 0"),
    "--forced-tokens": ("off", "off", "x", "must be 'auto' or 'exact' or 'canonical' or 'off'"),
    "--split-special-tokens": ("no", False, "x", "ignored explicit argument"),
    "--grammar-host": ("inline", "inline", "x", "must be 'auto' or 'process' or 'inline'"),
    "--modifier-host": ("inline", "inline", "x", "must be 'process' or 'inline'"),
    "--host-environment": ("LMFE_*", ("LMFE_*",), "[1]", "write '1'"),
    "--compile-threads": ("1", 1, "0", "compile_threads must be a whole number of at least 1"),
    "--grammar-cache-bytes": ("1000", 1000, "-1", "grammar_cache_bytes must be a whole number of at least 0"),
    "--whitespace": ("compact", "compact", "x", "must be 'bounded' or 'compact'"),
    "--short-budget": ("cut", "cut", "x", "must be 'refuse' or 'cut'"),
    "--on-unenforced": ("check", "check", "x", "must be 'report' or 'refuse' or 'check'"),
    "--reasoning-start-str": ("<t>", "<t>", "<t>", "but not how it ends"),
    "--reasoning-start-token-ids": ("5,6", (5, 6), "x", "must be a list of whole numbers"),
    "--reasoning-end-str": ("</t>", "</t>", "\udc80", "end_str"),
    "--reasoning-end-token-ids": ("7,8", (7, 8), "x", "must be a list of whole numbers"),
    "--reasoning-excluded-token-ids": ("9", (9,), "x", "must be a list of whole numbers"),
    "--limits-late-fills": ("4", 4, "0", "late_fills must be a whole number of at least 1"),
    "--limits-wall-factor": ("9", 9.0, "0", "wall_factor must be a number of at least 1"),
    "--limits-memory-bytes": ("2000000000", 2_000_000_000, "0", "memory_bytes must be a whole number of at least"),
    "--limits-total-memory-bytes": ("3000000000", 3_000_000_000, "0", "total_memory_bytes must be a whole number"),
    **{
        f"--limits-{name}-seconds": ("77", 77.0, "0", f"{name}_seconds must be a number of seconds above 0")
        for name in ("admission", "compile", "start", "step", "fill", "late", "request", "remembered")
    },
    "--plugins-allow": ("*/*", ("*/*",), "nosuch", "'nosuch' can match nothing"),
    "--plugins-deny": ("x/*", ("x/*",), "nosuch", "'nosuch' can match nothing"),
    "--plugins-require": ("installed", "installed", "x", "must be 'installed' or 'certified'"),
    "--plugins-lock": ("my.lock", "my.lock", "absent", "absent has no verdict"),
}
"""A right value as text and as it is read, a wrong value, and a part of its error, by flag."""

NOT_TOGETHER = {"--reasoning-start-str", "--reasoning-end-str"}
"""Flags that exclude others of `SETTINGS`."""

KEY_OF = {"--" + "-".join(key).replace("_", "-"): key for key in KEYS}

MORE = {
    "--config": "settings.toml",
    "--option": "grammar.xgrammar.max_threads=1",
    "--strict": "",
    "--modifier": "hello",
}
MORE_WRONG = {"--config": ("absent", "'absent' cannot be read"), "--option": ("x", "must be KIND.NAME.OPTION=VALUE")}
"""Flags that are no field of the configuration."""


def as_words(flag: str, value: str) -> list[str]:
    """Return the words that give a flag of `SETTINGS` its value."""
    if SETTINGS[flag][1] is False:
        return [flag.replace("--", "--no-", 1)]
    return [flag] if SETTINGS[flag][1] is True else [f"{flag}={value}"]


def value_of(config: EngineConfig, flag: str) -> Any:
    value: Any = config
    for name in KEY_OF[flag]:
        value = getattr(value, name)
    return value


@pytest.fixture
def files(tmp_path: Path) -> None:
    """Files that the arguments in the tables name."""
    (tmp_path / "a.lark").write_text('start: "ab"\n')
    (tmp_path / "in.jsonl").write_text('{"prompt": "x", "id": "a"}\n')
    (tmp_path / "old.jsonl").touch()
    (tmp_path / "settings.toml").write_text("max_model_len = 75\n")
    (tmp_path / "compact.toml").write_text('whitespace = "compact"\n')
    (tmp_path / "a.txt").write_text("ab\n")
    outputs = [{"index": i, "text": text, "finish_reason": "stop"} for i, text in enumerate(("b", "ab"))]
    records = [{"id": "a", "text": "a", "finish_reason": "stop"}, {"id": "b", **outputs[0], "outputs": outputs}]
    (tmp_path / "r.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))


def cases(table: dict[str, Any]) -> list[Any]:
    return [pytest.param(arguments, told, id=arguments[:60]) for arguments, told in table.items()]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("arguments", "check"), cases(GENERATED))
def test_generate_does_what_its_flags_say(arguments: str, check: Check, run: Run) -> None:
    outcome = run("generate", *with_base("generate", arguments))
    assert check(outcome), (outcome.out, outcome.err)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("command", WRONG)
def test_a_wrong_value_is_refused_by_name(command: str, run: Run, models: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(GOOD)
    (tmp_path / "a.jsonl").write_text('{"name": "a", "schema": true, "valid": [], "invalid": []}')
    for arguments, said in WRONG[command].items():
        words = with_base(command, arguments)
        words = [
            models.get(command, word) if word == "absent" and "--model" in words[i - 1 : i] else word
            for i, word in enumerate(words)
        ]
        outcome = run(command, *words)
        assert outcome.status in (1, 2, 4) or command in ("plugins list", "plugins show"), (arguments, outcome)
        assert said in outcome.err + outcome.out, (arguments, outcome)


@pytest.mark.parametrize("command", CONFIGURED)
def test_a_wrong_setting_is_refused_by_name(command: str, run: Run, models: dict[str, str]) -> None:
    known = flags_of(command)
    wrong = {flag: (value, said) for flag, (_, _, value, said) in SETTINGS.items()} | MORE_WRONG
    for flag in known.keys() & wrong.keys():
        value, said = wrong[flag]
        words = with_base(command, f"{flag}=x")[:-1]
        if "--model" in words:
            words[words.index("--model") + 1] = models.get(command, "demo")
        if flag == "--plugins-lock":
            words.append("--plugins-require=certified")
        outcome = run(command, *words, f"{flag}={value}")
        if command == "config show" and outcome.status == 0:  # it looks at values, and loads nothing
            continue
        assert outcome.status in (1, 2), (flag, outcome)
        assert said in outcome.err + outcome.out, (flag, outcome)


def test_config_show_shows_every_setting_and_its_flag(run: Run) -> None:
    Path("settings.toml").write_text("max_model_len = 75\n")
    chosen = [flag for flag in SETTINGS if flag not in NOT_TOGETHER]
    shown = run("config show", "--json", *(word for flag in chosen for word in as_words(flag, SETTINGS[flag][0]))).json
    for flag in chosen:
        entry = shown[".".join(KEY_OF[flag])]
        assert (entry["value"], entry["source"]) == (
            json.loads(json.dumps(SETTINGS[flag][1])),
            as_words(flag, "")[0].rstrip("="),
        )
    more = ["--config", "settings.toml", "--strict", "--modifier", "hello", "--grammar", "xgrammar"]
    shown = run("config show", "--json", *more, "--option", "grammar.xgrammar.max_threads=1").json
    assert shown["max_model_len"] == {"value": 75, "source": "settings.toml"}
    assert shown["on_unenforced"] == {"value": "refuse", "source": "--strict"}
    assert shown["modifiers"]["value"] == ["hello"]
    assert shown["options.grammar.xgrammar.max_threads"] == {"value": 1, "source": "--option"}
    for name in ("start", "end"):
        words = ["--reasoning-start-str=<t>", "--reasoning-end-str=</t>"]
        assert run("config show", "--json", *words).json[f"reasoning.{name}_str"]["source"] == f"--reasoning-{name}-str"


USED_BY_TASKS = ("--workflow", "--device", "--dtype", "--executor", "--max-model-len")
PLUGINS = ("--plugins-allow", "--plugins-deny", "--plugins-require", "--plugins-lock")
TASK_RIGHT: dict[str, Check] = {
    "--text w1 --text w2 --json": lambda o: [line["id"] for line in o.lines] == ["0", "1"],
    "--input in.txt --truncate left": lambda o: o.lines[0]["truncated"] is True,
    "--input in.txt --truncate right --lines text": lambda o: o.lines[0]["truncated"] is True,
    "--text w1 --output new.jsonl": lambda o: o.out == "" and Path("new.jsonl").read_text().count("\n") == 1,
    "--text w1 --output old.jsonl --resume": lambda _: Path("old.jsonl").read_text().count("\n") == 1,
    "--text w1 --config settings.toml": lambda o: o.configs[0].max_model_len == 75,
    "--text w1 --option=workflow.TASK.driver=sync": lambda o: "sync" in str(o.configs[0].options),
}
KEYS_RIGHT: dict[str, list[dict[str, Any]]] = {
    "embed": [{"prompt": "w1", "id": "a"}, {"prompt_token_ids": [5, 6], "id": 7}],
    "rerank": [{"query": "w1", "document": "w2", "id": "a"}],
    "classify": [{"prompt": "w1", "id": "a"}, {"prompt_token_ids": [5, 6]}, {"pair": ["w1", "w2"]}],
}
KEYS_WRONG: dict[str, list[dict[str, Any]]] = {
    "embed": [{"prompt": 5}, {"prompt_token_ids": [99999]}, {"prompt": "x", "id": None}, {"promt": "x"}],
    "rerank": [{"query": 5, "document": "x"}, {"query": "x", "document": 5}, {"document": "x", "id": []}],
    "classify": [{"prompt": 5}, {"prompt_token_ids": ["x"]}, {"pair": ["x"]}, {"prompt": "x", "id": False}],
}


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("task", TASKS)
def test_a_task_does_what_its_flags_and_lines_say(task: str, run: Run, models: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("w1 " * 200)
    model = ["--model", models[task]]
    for arguments, check in TASK_RIGHT.items():
        words = shlex.split(arguments.replace("TASK", task))
        outcome = run(task, *model, *words, *(["--query", "w1"] if task == "rerank" else []))
        assert check(outcome), (arguments, outcome)
    words = [word for flag in (*USED_BY_TASKS, *PLUGINS) for word in as_words(flag, SETTINGS[flag][0])]
    words[0] = f"--workflow=guideway-engine/{task}"
    (config,) = run(task, *model, *with_base(task, " ".join(words))[2:], *words[len(words) :]).configs
    assert (config.dtype, config.max_model_len, config.plugins.deny) == ("float64", 70, ("x/*",))
    if task == "embed":
        assert len(run(task, *model, "--text", "w1", "--dimensions", "3").lines[0]["embedding"]) == 3
    for lines, status in ((KEYS_RIGHT[task], 0), (KEYS_WRONG[task], 1)):
        (tmp_path / "keys.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        outcome = run(task, *model, "--input", "keys.jsonl", "--lines", "json")
        assert outcome.status == status, outcome
        assert {line["finish_reason"] for line in outcome.lines} == {"refused" if status else "done"}, outcome.err
        assert {key for line in lines for key in line} >= set(task_inputs.KEYS[task])


def test_generate_takes_every_setting(run: Run) -> None:
    Path("settings.toml").write_text("max_waiting = 9\n")
    ids = [flag for flag in SETTINGS if flag.startswith("--reasoning") and flag.endswith("ids")]
    for without in (ids, [*NOT_TOGETHER]):
        chosen = [flag for flag in SETTINGS if flag not in without and flag != "--model"]
        words = [word for flag in chosen for word in as_words(flag, SETTINGS[flag][0])]
        words += [
            "--config=settings.toml",
            '--modifier=hello={"letter":"a"}',
            "--option=grammar.xgrammar.max_threads=1",
        ]
        outcome = run("generate", *BASE["generate"], "--max-tokens=2", *words)
        assert outcome.status == 0, outcome.err
        (config,) = outcome.configs
        assert {flag: value_of(config, flag) for flag in chosen} == {flag: SETTINGS[flag][1] for flag in chosen}
        assert config.options == {"grammar.xgrammar": {"max_threads": 1}} and config.modifiers == ("hello",)
    outcome = run("generate", *BASE["generate"], "--max-tokens=2", "--strict", "--config=settings.toml")
    assert (outcome.configs[0].on_unenforced, outcome.configs[0].max_waiting) == ("refuse", 9)


LINES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"prompt": [{"role": "user", "content": PROMPT}]}, {"prompt": 5}),
    ({"id": 7}, {"id": None}),
    ({"schema": {"const": "ab"}}, {"schema": {"type": "strnig"}}),
    ({"regex": "ab"}, {"regex": "("}),
    ({"choice": ["ab"]}, {"choice": []}),
    ({"grammar": {"dialect": "lark", "text": 'start: "ab"'}}, {"grammar": "ab"}),
    ({"tenant": "acme"}, {"tenant": 5}),
    ({"modifiers": {"hello": {"letter": "a"}}}, {"modifiers": {"nosuch": {}}}),
    ({"on_unenforced": "check", "choice": ["a"], "max_retries": 2, "temperature": 1}, {"on_unenforced": "x"}),
    ({"min_tokens": 2}, {"min_tokens": -1}),
    ({"max_tokens": 1}, {"max_tokens": 0}),
    ({"temperature": 1}, {"temperature": -1}),
    ({"top_k": 1}, {"top_k": 1.5}),
    ({"top_p": 0.5}, {"top_p": 2}),
    ({"min_p": 0.5}, {"min_p": 2}),
    ({"typical_p": 0.5, "temperature": 1}, {"typical_p": 0.5}),
    ({"repetition_penalty": 2}, {"repetition_penalty": 0}),
    ({"frequency_penalty": 2}, {"frequency_penalty": "x"}),
    ({"presence_penalty": 2}, {"presence_penalty": "x"}),
    ({"logit_bias": {"65": 99}}, {"logit_bias": {"x": 1}}),
    ({"seed": 3, "temperature": 1}, {"seed": -1}),
    ({"stop": ["Zoë"]}, {"stop": [""]}),
    ({"stop_token_ids": [306]}, {"stop_token_ids": [99999]}),
    ({"ignore_eos": True}, {"ignore_eos": "yes"}),
    ({"n": 2, "temperature": 1}, {"n": 2}),
    ({"best_of": 2, "temperature": 1}, {"best_of": 0}),
    ({"logprobs": 1}, {"logprobs": -1}),
    ({"logprobs": 1, "logprobs_mode": "processed"}, {"logprobs": 1, "logprobs_mode": "half"}),
    ({"records": True}, {"records": 1}),
    ({"prompt_logprobs": 1}, {"prompt_logprobs": 9999}),
    ({"echo": True}, {"echo": 1}),
    ({"priority": -3}, {"priority": "x"}),
    ({"max_retries": 0}, {"max_retries": -1}),
    ({"close": False}, {"close": "no"}),
    ({"reasoning": False}, {"reasoning": True}),
    ({"thinking_token_budget": None}, {"thinking_token_budget": 0}),
]
"""Right and wrong values of the keys of a line of ``generate``."""


def test_every_key_of_a_line_is_taken_and_a_wrong_value_names_its_line(run: Run, tmp_path: Path) -> None:
    assert {key for right, _ in LINES for key in right} == {key for _, wrong in LINES for key in wrong}
    assert {key for right, _ in LINES for key in right} == set(LINE_KEYS)
    for column in (0, 1):
        entries = [{"prompt": PROMPT, **pair[column]} for pair in LINES]
        (tmp_path / "in.jsonl").write_text("\n".join(["", *map(json.dumps, entries)]))
        outcome = run("generate", "--model", "demo", "--max-tokens", "6", "--input", "in.jsonl")
        for number, (entry, line) in enumerate(zip(entries, outcome.lines, strict=True), start=2):
            assert (line["finish_reason"] == "refused") == bool(column), (entry, line)
            if column:
                assert re.search(rf"line {number}\b", outcome.err), (entry, outcome.err)
        if not column:
            given = outcome.asked["params"]
            for pair, params in zip(LINES, given, strict=True):
                for key in pair[0].keys() & jobs.SAMPLING.keys():
                    wanted = {65: 99} if key == "logit_bias" else pair[0][key]
                    found = getattr(params, key)
                    assert (list(found) if isinstance(found, tuple) else found) == wanted
            assert outcome.asked["tenants"][6] == "acme"


def inspected(text: str, *, passes: bool = True, **facts: Any) -> Check:
    """Return a check of ``guideway inspect --json``: the text that it read, whether it passes, and other facts."""

    def check(outcome: Outcome) -> bool:
        found = outcome.json
        wanted = {"text": text, "passes": passes, **facts}
        return {name: found[name] for name in wanted} == wanted and outcome.status == int(not passes)

    return check


def told(text: str) -> Check:
    """Return a check of a refusal by the given words."""
    return lambda outcome: outcome.status == 1 and text in outcome.err


LIST = """--json --schema '{"type": "array"}' --text '[1, 2]'"""
INSPECTED: dict[str, Check] = {
    "--json --text ab": inspected("ab"),
    "--json --text ac": inspected("ac", passes=False),
    "--json --text-file a.txt": inspected("ab"),
    "--json --token-ids 71,72": inspected("ab", token_ids=[71, 72]),
    "--json --token-ids 72,71": inspected("ba", passes=False, token_ids=[72, 71]),
    "--json --record r.jsonl --id b --output-index 1": inspected("ab"),
    "--json --record r.jsonl --id b": inspected("b", passes=False),
    "--json --record r.jsonl --id a": inspected("a", passes=False),
    "--json --schema '{\"const\": 12}' --text 12": inspected("12"),
    "--json --schema '{\"const\": 12}' --text 13": inspected("13", passes=False),
    "--json --choice ab --choice c --text c": inspected("c"),
    "--json --choice ab --choice c --text b": inspected("b", passes=False),
    "--json --regex 'a+' --text aaa": inspected("aaa", constraint={"kind": "regex", "source": "a+"}),
    "--json --grammar-file lark=a.lark --text ab": lambda o: o.json["constraint"]["kind"] == "grammar:lark",
    "--html page.html": lambda _: "<!doctype html>" in Path("page.html").read_text().lower(),
    LIST: inspected("[1, 2]"),
    f"{LIST} --whitespace compact": inspected("[1, 2]", passes=False),
    f"{LIST} --config compact.toml": inspected("[1, 2]", passes=False),
    "--json --grammar xgrammar": inspected("ab", strategy="xgrammar"),
    "--grammar outlines --option grammar.outlines.max_entries=1": told("more than 1 entries"),
    "--plugins-deny 'guideway-llguidance/*'": told("deny has 'guideway-llguidance/*'"),
    "--plugins-allow 'guideway-demo-model/*'": told("(it has 'guideway-demo-model/*')"),
    "--plugins-require certified --plugins-lock b.lock": told("b.lock has no verdict"),
    "--json --plugins-require installed --plugins-lock b.lock": inspected("ab"),
}
"""What ``guideway inspect`` does with each flag, which it would not do without."""


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("arguments", "check"), cases(INSPECTED))
def test_inspect_does_what_its_flags_say(arguments: str, check: Check, run: Run) -> None:
    outcome = run("inspect", *with_base("inspect", arguments))
    assert check(outcome), (outcome.out, outcome.err)


PLUGINS_RIGHT: list[tuple[str, str, Check]] = [
    ("plugins list", "--json --lock my.lock", lambda o: len(o.json["plugins"]) > 20),
    ("plugins show", "device.numpy --json --lock my.lock", lambda o: o.json["plugins"][0]["name"] == "numpy"),
    ("plugins doctor", "--json --lock my.lock --import --timeout 50 device.numpy", lambda o: o.json["ok"]),
    ("plugins lock", "device.numpy --json --file my.lock", lambda o: o.json["plugins"] == ["guideway/device.numpy"]),
    ("plugins verify-lock", "--json --file my.lock", lambda o: o.json["ok"]),
    ("plugins verify-lock", "--json --strict --file my.lock", lambda o: not o.json["ok"]),
    ("plugins new", "device mine --json --distribution x-mine --folder new", lambda o: o.json["folder"] == "new"),
]


def test_plugins_does_what_its_flags_say(run: Run) -> None:
    for command, arguments, check in PLUGINS_RIGHT:
        assert check(run(command, *arguments.split())), (command, arguments)


CONFORMED = [
    "mine.py --contract 1.0 --up-to smoke --jobs 1 --timeout-factor 3 --report r.json --markdown r.md --junit r.xml "
    "--badge r.svg",
    "--config settings.toml --up-to smoke --record --lock my.lock",
]


@pytest.mark.slow
def test_conform_does_what_its_flags_say(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(GOOD)
    (tmp_path / "settings.toml").write_text('model = "demo"\ndevice_backend = "guideway/numpy"\n')
    reported, configured = CONFORMED
    outcome = run("conform", *reported.split())
    assert "levels: " in outcome.out, outcome
    assert [Path(name).stat().st_size > 99 for name in ("r.json", "r.md", "r.xml", "r.svg")] == [True] * 4
    outcome = run("conform", *configured.split())
    assert "device.numpy" in outcome.out and "not recorded" in outcome.err, outcome
    assert run("conform matrix", "r.json", "--html", "site", "--markdown", "m.md").status == 0
    assert Path("site/index.html").exists() and Path("m.md").exists()


COVERED = (
    "a.jsonl --strategy reference --strategy lmfe,reference --output out --jobs 2 --seconds 9 --properties-order any"
)


def test_coverage_does_what_its_flags_say(run: Run, tmp_path: Path) -> None:
    case = {"name": "a", "schema": {"type": "integer"}, "valid": [1], "invalid": ["a"]}
    (tmp_path / "a.jsonl").write_text(json.dumps(case))
    outcome = run("coverage", *COVERED.split())
    assert (outcome.status, outcome.out.count("reference")) == (0, 2), outcome
    totals = json.loads((tmp_path / "out" / "totals.json").read_text())
    assert (totals["seconds"], totals["totals"][0]["kinds"]["right"]) == (9.0, 1)


RUNNER_THAT_WAITS = """\
import pathlib, time
from guideway_engine.prefill.runner import PoolingRunner

class Waits(PoolingRunner):
    def execute(self, step):
        waits = pathlib.Path("waits")
        if waits.exists():
            pathlib.Path("under_way").touch()
            time.sleep(float(waits.read_text()))
        return super().execute(step)
"""


@dataclass
class Served:
    """A server that runs in a folder, and what it said when it began."""

    folder: Path
    process: subprocess.Popen[str]
    line: str
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.2:{self.port}"

    def client(self, data: bytes, receive_bytes: int | None = None) -> Raw:
        return Raw(self.url, data, receive_bytes)

    def get(self, path: str) -> str:
        with self.client(f"GET {path} HTTP/1.1\r\nhost: a\r\n".encode() + KEY + b"\r\n") as client:
            return client.response()[2].decode()


KEY = b"authorization: Bearer secret\r\n"


def ask(text: str = "w1", *, times: int = 1, headers: bytes = KEY, **more: Any) -> bytes:
    """Return a request for the embeddings of a text."""
    given: Any = text if times == 1 else [text] * times
    body = json.dumps({"model": "tiny", "input": given, **more}).encode()
    return post("/v1/embeddings", body, headers=headers)


def unfinished(size: int = 1) -> bytes:
    """Return a request whose body lacks its last byte."""
    return post("/v1/embeddings", b" " * size, size + 1, headers=KEY)


def status(served: Served, data: bytes) -> int:
    with served.client(data) as client:
        return client.response()[0]


def error(served: Served, data: bytes) -> tuple[int, str]:
    with served.client(data) as client:
        return client.error()


def is_first(served: Served, data: bytes, *, num_answers: int = 0) -> bool:
    """Return whether the server answers a connection, or closes it, before one whose body is unfinished as long."""
    with served.client(data) as client, served.client(unfinished()) as other:
        for _ in range(num_answers):
            client.response()
        ready, _, _ = select([client.socket, other.socket], [], [], 30)
        return ready == [client.socket]


def keeps_few_requests(served: Served) -> bool:
    (served.folder / "waits").write_text("1.5")
    with ExitStack() as stack:
        clients = [stack.enter_context(served.client(ask())) for _ in range(6)]
        statuses = {client.response()[0] for client in clients}
    (served.folder / "waits").unlink()
    return statuses == {200, 429}


def keeps_few_connections(served: Served) -> bool:
    with ExitStack() as stack:
        first, *_ = [stack.enter_context(served.client(unfinished())) for _ in range(13)]
        return b"408" not in first.rest()  # it was closed before its time was over


def keeps_few_bytes(served: Served) -> bool:
    with ExitStack() as stack:
        first, *_ = [stack.enter_context(served.client(unfinished(450_000))) for _ in range(9)]
        assert status(served, ask()) == 200  # it has read the others
        first.write(b" ")
        return first.error() == (429, "busy")


def drops_who_does_not_read(served: Served) -> bool:
    with served.client(ask(times=1000) * 9, receive_bytes=4096):
        until(lambda: 'guideway_http_errors_total{code="write_timeout"}' in served.get("/metrics"))
    return True


def ends_within_grace(served: Served) -> bool:
    (served.folder / "under_way").unlink()
    (served.folder / "waits").write_text("8")
    with served.client(ask()) as client:
        until((served.folder / "under_way").exists)
        served.process.send_signal(signal.SIGTERM)
        return client.error() == (503, "engine_closed") and served.process.wait(60) == 0


SERVED: dict[str, tuple[str, Callable[[Served], object]]] = {
    "--host": ("127.0.0.2", lambda s: "at http://127.0.0.2:" in s.line),
    "--port": ("PORT", lambda s: f":{s.port}/v1" in s.line),
    "--name": ("tiny", lambda s: json.loads(s.get("/v1/models"))["data"][0]["id"] == "tiny"),
    "--api-key": ("secret", lambda s: error(s, ask(headers=b"")) == (401, "invalid_api_key")),
    "--allowed-hosts": ("a", lambda s: (status(s, ask()), status(s, ask().replace(b": a", b": b", 1))) == (200, 400)),
    "--trust-clients": ("", lambda s: status(s, ask(priority=3)) == 200),
    "--max-model-len": ("20", lambda s: (status(s, ask("w1 " * 10)), status(s, ask("w1 " * 30))) == (200, 400)),
    "--max-connections": ("12", keeps_few_connections),
    "--max-requests": ("2", keeps_few_requests),
    "--config": ("waits.toml", lambda s: (s.folder / "under_way").exists()),
    "--max-body-bytes": ("500000", lambda s: error(s, ask("w" * 500_000)) == (413, "too_large")),
    "--max-bytes": ("1500000", keeps_few_bytes),
    "--head-timeout": ("2", lambda s: is_first(s, b"GET ")),
    "--keep-alive-timeout": ("2", lambda s: is_first(s, ask(), num_answers=1)),
    "--body-timeout": ("4", lambda s: error(s, unfinished()) == (408, "request_timeout")),
    "--write-timeout": ("4", drops_who_does_not_read),
    "--grace": ("1", ends_within_grace),
}
"""Values of the flags of ``guideway serve``, and what a server does with all of them that it would not do without."""

SERVED_TOO = (
    "--option=workflow.embed.driver=sync --workflow guideway-engine/embed --device cpu --dtype float32 "
    "--executor guideway-engine/local --plugins-allow */* --plugins-deny x/* --plugins-require installed "
    "--plugins-lock my.lock"
)


@pytest.mark.slow
@pytest.mark.usefixtures("files")
def test_serve_does_what_its_flags_say(models: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "runner_that_waits.py").write_text(RUNNER_THAT_WAITS)
    (tmp_path / "waits.toml").write_text('[options."workflow.embed"]\nrunner = "runner_that_waits:Waits"\n')
    with socket.create_server(("127.0.0.2", 0)) as free:
        port = free.getsockname()[1]
    words = [word for flag, (value, _) in SERVED.items() for word in (flag, value.replace("PORT", str(port))) if word]
    command = [sys.executable, "-m", "guideway", "serve", "--model", models["serve"], *words, *SERVED_TOO.split()]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stderr is not None
            served = Served(tmp_path, process, process.stderr.readline(), port)
            for flag, (_, check) in SERVED.items():
                assert check(served), (flag, served.line)
        finally:
            process.kill()


def test_every_flag_has_a_case_with_a_right_and_one_with_a_wrong_value() -> None:
    settings = {*SETTINGS, *MORE_WRONG}
    right = {
        "generate": [*GENERATED, "--strict --modifier", " ".join(settings)],
        "config show": ["--json --strict --modifier", " ".join(settings)],
        "inspect": [*INSPECTED, "--model", *BASE["inspect"]],
        "serve": [*SERVED, SERVED_TOO, "--model"],
        "conform": CONFORMED,
        "conform matrix": ["--html --markdown"],
        "coverage": [COVERED],
        **{task: [*TASK_RIGHT, *USED_BY_TASKS, *PLUGINS, "--model --lines --query --dimensions"] for task in TASKS},
    }
    for command, arguments, _ in PLUGINS_RIGHT:
        right.setdefault(command, []).append(arguments)
    without: dict[str, list[str]] = {}
    for command in parsers():
        tables = {
            "right": " ".join(right.get(command, [])),
            "wrong": " ".join([*WRONG[command], *(settings if command in CONFIGURED else ())]),
        }
        for flag, names in flags_of(command).items():
            for kind, words in tables.items():
                if not any(re.search(rf"(^|\s){re.escape(name)}(\s|=|$)", words) for name in names):
                    without.setdefault(f"{command}, {kind}", []).append(flag)
    assert not without
