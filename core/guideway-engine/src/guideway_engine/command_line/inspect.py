"""Show the tokens that a constraint allows at each place of a text, and why a text is refused.

``guideway inspect``.
"""
# ruff: noqa: T201 - commands print

from __future__ import annotations

import json
import signal
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, _SubParsersAction
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from guideway.api.types import Constraint, JsonSchema
from guideway.api.vocabulary import Vocabulary
from guideway.command_line.quiet import quiet_libraries
from guideway.command_line.usage import WrongValue
from guideway.errors import InvalidConfiguration, InvalidRequest, PluginError, UnsupportedGrammar, close_each, printable
from guideway.files import write_file
from guideway.plugins import Plugins
from guideway.plugins.building import build_strategies

from guideway_engine.command_line import config
from guideway_engine.command_line.jobs import add_constraint, constraint_of
from guideway_engine.command_line.reading import check_output, read_text
from guideway_engine.command_line.records import Record, read_record
from guideway_engine.config import EngineConfig
from guideway_engine.config_sources import Layer, Setting
from guideway_engine.inspection.as_json import as_json
from guideway_engine.inspection.as_page import as_page
from guideway_engine.inspection.as_table import print_inspection
from guideway_engine.inspection.inspecting import Inspection, inspect_constraint
from guideway_engine.inspection.tokenizer import load_vocabulary
from guideway_engine.model_path import model_path
from guideway_engine.strategies import installed_strategies, of_installed, serving

__all__ = ["add_inspect"]

USED = ("model", "grammar", "whitespace", "plugins")
"""Fields and tables of the configuration that are used here."""


def add_inspect(subparsers: _SubParsersAction[ArgumentParser]) -> None:
    """Add the command ``inspect``."""
    summary = "show which tokens a constraint allows at each place of a text, and why it refuses a text"
    parser = subparsers.add_parser(
        "inspect",
        usage="guideway inspect --model NAME CONSTRAINT [--text TEXT | --text-file FILE | --token-ids ID,...] [flags]\n"
        "       guideway inspect --record FILE [--id ID] [flags]",
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}. The strategy is chosen as guideway generate chooses it; the "
        "model's weights are not loaded. Exit status: 0 the text satisfies the constraint; 1 it does not, or "
        "it could not be inspected; 2 wrong usage, or an invalid value on the command line. If no configuration names "
        "strategies, guideway's own that are installed are tried.",
    )
    group = parser.add_argument_group("text", "Without a text, the allowed first tokens are shown.")
    texts = group.add_mutually_exclusive_group()
    texts.add_argument("--text", metavar="TEXT", help="the text, tokenized with the model's tokenizer")
    texts.add_argument(
        "--text-file", metavar="FILE", help="a file with the text; its last line break is removed; - for standard input"
    )
    texts.add_argument("--token-ids", metavar="ID,...", type=_ids, help="the text as token ids")
    texts.add_argument(
        "--record",
        metavar="FILE",
        help="an answer that guideway generate wrote; with its --record also model, constraint and token ids are "
        "taken from there; - for standard input",
    )
    group.add_argument("--id", metavar="ID", help="which answer, if --record has several")
    group.add_argument(
        "--output-index", metavar="N", type=int, help="which of several outputs of one prompt (default: 0)"
    )
    add_constraint(parser)
    shown = parser.add_argument_group("what is shown")
    shown.add_argument("--json", action="store_true", help="print JSON")
    shown.add_argument("--html", metavar="FILE", help="write one self-contained HTML page")
    config.add_flags(parser, only=USED)
    parser.set_defaults(run=_inspect)


def _inspect(args: Namespace) -> int:
    if args.record is None and (args.id is not None or args.output_index is not None):
        print("guideway inspect: error: --id and --output-index need --record; add it", file=sys.stderr)
        return 2
    check_output(args, "html")
    record = None if args.record is None else read_record(args.record, args.id, args.output_index or 0)
    with quiet_libraries(), _end_on_interrupt():
        inspection, model = _run_inspection(args, record)
    if args.html is not None:
        write_file(args.html, as_page(inspection, model), field="html")
    if args.json:
        print(_as_text(as_json(inspection, model)))
    elif args.html is None:
        print_inspection(inspection, model)
    else:
        print(f"the page is in {args.html}")
    return 0 if inspection.passes else 1


@contextmanager
def _end_on_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the process at once: a compiling library reacts to nothing else, and nothing is left half done."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _run_inspection(args: Namespace, record: Record | None) -> tuple[Inspection, str]:
    constraint = _constraint(args, record)
    layers = config.sources(args)
    # flags override the record, and it overrides environment and file, which may have changed since
    if record is not None:
        layers.insert(-1, {key: Setting(value, record.where) for key, value in record.settings.items()})
    said = config.configuration(args, layers)
    defaults: Layer = {}
    if ("grammar",) not in said.settings:  # each strategy must be imported to find out whether it can run
        names, _ = installed_strategies(said.plugin_settings(), said.options())
        defaults["grammar",] = Setting(names, config.INSTALLED)
    configuration = config.configuration(args, layers, defaults)
    chosen = configuration.build(EngineConfig)
    if isinstance(constraint, JsonSchema) and constraint.whitespace is None:
        constraint = replace(constraint, whitespace=chosen.whitespace)
    loaded = Plugins(settings=chosen.plugins)
    try:
        classes = [loaded.load("grammar", address) for address in chosen.grammar or ()]
        vocabulary = load_vocabulary(model_path(chosen.model, loaded))
        ids = _token_ids(args, record, vocabulary)
        strategies = build_strategies(classes, vocabulary, chosen.options)
    except (InvalidConfiguration, PluginError) as error:
        config.add_source(error, configuration)
        raise
    try:
        served_by, pressure = (None, ()) if record is None else (record.strategy, record.pressure)
        inspection = inspect_constraint(constraint, strategies, vocabulary, ids, served_by=served_by, pressure=pressure)
        return inspection, chosen.model
    except UnsupportedGrammar as error:
        if configuration.source_of("grammar") == config.INSTALLED:
            raise of_installed(error, chosen.plugins) from error
        if others := serving(error, chosen.plugins, chosen.options, constraint, chosen.grammar or ()):
            listed = ", ".join(others)
            error.add_note(f"Other strategies, installed, say that they take it: {listed}; choose with --strategy.")
        raise
    finally:
        close_each((f"grammar.{name}", strategy.close) for name, strategy in strategies.items())


def _constraint(args: Namespace, record: Record | None) -> Constraint:
    """Return the constraint of the flags, or else of the record."""
    given = constraint_of(args)
    if given is None and record is not None:
        given = record.constraint
    if given is None:
        flags = "--schema, --regex, --choice or --grammar-file"
        if record is None:
            raise WrongValue(f"there is no constraint to inspect; add {flags}", field="constraint")
        raise InvalidRequest(
            f"{record.where} does not contain its constraint; add {flags}, or write it with guideway generate --record",
            field="constraint",
        )
    return given.frozen()


def _token_ids(args: Namespace, record: Record | None, vocabulary: Vocabulary) -> Sequence[int] | None:
    """Return the token ids of the text; None without a text. Raises `InvalidRequest` if the text has none."""
    ids: Sequence[int] | None = args.token_ids if record is None else record.token_ids
    if ids is not None:
        outside = next((i for i in ids if not 0 <= i < len(vocabulary)), None)
        if outside is not None:
            raise InvalidRequest(
                f"token id {outside} is not in the vocabulary (ids 0 to {len(vocabulary) - 1}); check that --model is "
                "the model that wrote it",
                field="token_ids",
            )
        return ids
    if record is not None:
        text = record.text
    elif args.text_file is not None:
        text = read_text(args.text_file, "text_file").removesuffix("\n").removesuffix("\r")
    elif args.text is not None:
        text = args.text
    else:
        return None
    try:
        found = vocabulary.encode(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            "the text contains a lone surrogate, which is not valid Unicode text; remove it", field="text"
        ) from error
    if found is None:
        raise InvalidRequest(
            "the model's tokenizer has no tokens for exactly this text; give --token-ids instead", field="text"
        )
    return found


def _as_text(value: dict[str, Any]) -> str:
    """Return JSON, unescaped if standard output can show it."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, indent=2)
    return text if printable(text) == text else json.dumps(value, indent=2)


def _ids(text: str) -> tuple[int, ...]:
    """Parse ``1,2,3``."""
    try:
        return tuple(int(item) for item in text.split(",") if item.strip())
    except ValueError as error:
        raise ArgumentTypeError(f"must be token ids separated by commas, such as 17,4,2, not {text!r}") from error
