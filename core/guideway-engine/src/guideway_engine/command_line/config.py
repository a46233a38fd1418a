"""The configuration and the source of each value.

``guideway config show``, and the configuration's flags for every command that starts an engine.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace, _ArgumentGroup, _SubParsersAction
from collections.abc import Collection
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from guideway.command_line.terminal import print_json, print_table
from guideway.errors import GuidewayError, InvalidConfiguration, NotCertified, PluginError
from guideway.plugins import PluginIndex
from guideway.plugins.configuration import component_name
from guideway.plugins.kinds import HOOKS
from guideway.plugins.operator_files import located
from guideway.plugins.selection import resolve

from guideway_engine.config import EngineConfig
from guideway_engine.config_sources import KEYS, Configuration, Key, Layer, Setting, read_layers
from guideway_engine.fields import add_flag
from guideway_engine.settings import KIND_OF

__all__ = ["INSTALLED", "OF_PROMPTS", "add_config", "add_flags", "add_source", "configuration", "sources"]

ENABLE: Key = ("plugins", "enable")
MODIFIERS: Key = ("modifiers",)
UNENFORCED: Key = ("on_unenforced",)

ALIASES: dict[Key, tuple[str, ...]] = {("grammar",): ("--strategy",)}
"""Other names of a flag."""
INSTALLED = "what is installed"
"""Source of the grammar strategies if no configuration selects any."""
OF_PROMPTS = "the prompts"
"""Source of the modifiers that prompts use, if no configuration selects any."""
OF_THEIR_OWN = (ENABLE, MODIFIERS)
"""Keys with a flag that adds to the configured value: ``--enable-plugin``, before the command, and ``--modifier``."""


def add_flags(parser: ArgumentParser, only: Collection[str] = ()) -> None:
    """Add the configuration's flags to a command; if `only` is not empty, for the fields and tables it lists."""
    group = parser.add_argument_group(
        "configuration",
        "flags win over GUIDEWAY_... environment variables, these over the file, the file over defaults",
    )
    group.add_argument(
        "--config", metavar="FILE", help="a TOML file with the configuration (default: the one GUIDEWAY_CONFIG names)"
    )
    either = group.add_mutually_exclusive_group()
    for key, field in KEYS.items():
        if key not in OF_THEIR_OWN and (not only or key[0] in only):
            add_flag(
                either if key == UNENFORCED else group, field, _flag(key), *ALIASES.get(key, ()), dest=".".join(key)
            )
    if only:
        parser.set_defaults(modifier=[])
    else:
        _add_strict_and_modifier(either, group)
    group.add_argument(
        "--option",
        metavar="KIND.NAME.OPTION=VALUE",
        type=_option,
        action="append",
        default=[],
        help="an option of a component, such as grammar.NAME.max_threads=2 (repeatable)",
    )


def _add_strict_and_modifier(either: _ArgumentGroup, group: _ArgumentGroup) -> None:
    either.add_argument(
        "--strict",
        action="store_const",
        const="refuse",
        default=SUPPRESS,
        dest=".".join(UNENFORCED),
        help="the same as --on-unenforced refuse",
    )
    group.add_argument(
        "--modifier",
        metavar="NAME[={...}]",
        type=_modifier,
        action="append",
        default=[],
        help="a logit modifier that requests may use and prompts given here do use, with these options (repeatable)",
    )


def sources(args: Namespace) -> list[Layer]:
    """Read the layers of file, environment and flags, in order of rising precedence. Raises `InvalidConfiguration`."""
    given = vars(args)
    typed = dict.fromkeys(word.partition("=")[0] for word in args.words)
    flags: Layer = {}
    for key in KEYS:
        if (name := ".".join(key)) in given:
            flags[key] = Setting(given[name], ", ".join(flag for flag in typed if flag in _flags(key)))
    for component, option, value in args.option:
        flags[("options", component)] = Setting({}, "--option")
        flags[("options", component, option)] = Setting(value, "--option")
    return read_layers(args.config, os.environ, flags)


def configuration(args: Namespace, layers: list[Layer], defaults: Layer | None = None) -> Configuration:
    """Merge `layers` and, with lower precedence, `defaults`, and add the modifiers and enabled plugins in `args`."""
    layers = [defaults or {}, *layers]
    said = Configuration.of(layers).settings
    more: Layer = {}
    for key, kind, names, flag in (
        (MODIFIERS, "modifier", [name for name, _ in args.modifier], "--modifier"),
        (ENABLE, HOOKS, args.enabled_by_flag, "--enable-plugin"),
    ):
        before = said.get(key, Setting((), ""))
        if names and isinstance(before.value, list | tuple):
            there = _ways_to_name(kind, before.value)
            new = [name for name in names if located(name).removeprefix(f"{kind}.") not in there]
            value = tuple(dict.fromkeys([*before.value, *new]))
            more[key] = Setting(value, f"{before.source}, {flag}" if before.value else flag)
    return Configuration.of([*layers, more])


def _ways_to_name(kind: str, addresses: Collection[Any]) -> set[str]:
    """Return the addresses and names by which a flag means one of the configured components."""
    absolute = [located(address).removeprefix(f"{kind}.") for address in addresses if isinstance(address, str)]
    return {*absolute, *(component_name(kind, address) for address in absolute)}


def add_config(subparsers: _SubParsersAction[ArgumentParser]) -> None:
    """Add the command ``config`` and its subcommand."""
    parser = subparsers.add_parser("config", help="the configuration", description="The configuration.")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")

    def no_command(_: Namespace) -> int:
        parser.print_help(sys.stderr)
        return 2

    parser.set_defaults(run=no_command)
    summary = "show the configuration that the same flags give other commands, and where each value comes from"
    show = commands.add_parser(
        "show",
        usage="guideway config show [--json] [--config FILE] [flags]",
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}. Exit status: 0 it can be used as far as its values go; "
        "1 it cannot, 2 because of a flag. Nothing is loaded: executor and device backend must be installed, but "
        "whether the model and other plugins are there is not looked at.",
    )
    show.add_argument("--json", action="store_true", help="print JSON")
    add_flags(show)
    show.set_defaults(run=_show)


def _show(args: Namespace) -> int:
    resolved = configuration(args, sources(args))
    _check(resolved)
    rows: dict[str, tuple[Any, str]] = {}
    for key, field in KEYS.items():
        setting = resolved.settings.get(key)
        if setting is not None:
            rows[".".join(key)] = (setting.value, setting.source)
        elif field.default is MISSING:
            rows[".".join(key)] = (None, "not set")
        else:
            rows[".".join(key)] = (field.default, "default")
    for settings, note in ((resolved.settings, ""), (resolved.unused, " (not used: the component was replaced)")):
        for key, setting in sorted(settings.items()):
            if key[0] == "options" and len(key) == 3:
                rows[".".join(key)] = (setting.value, f"{setting.source}{note}")
    if args.json:
        print_json({name: {"value": v, "source": s} for name, (v, s) in rows.items()})
        return 0
    # a long path may exceed its column; it need not widen the table for all rows
    print_table(
        ("KEY", "VALUE", "FROM"), [(name, _text(value), source) for name, (value, source) in rows.items()], longest=40
    )
    return 0


def _check(resolved: Configuration) -> None:
    """Raise `InvalidConfiguration` or `PluginError` for wrong values. A missing model is reported by the command that
    needs it."""
    settings = {("model",): Setting("any", "")} | dict(resolved.settings)
    config = Configuration(settings, {}).build(EngineConfig)
    index = PluginIndex.scan()
    try:
        for kind, address in (("executor", config.executor), ("device", config.device_backend)):
            resolve(index, config.plugins, kind, address)
    except PluginError as error:
        add_source(error, resolved)
        raise


def add_source(error: GuidewayError, configuration: Configuration) -> None:
    """Add a note to `error` with the source of the value that caused it."""
    if isinstance(error, NotCertified):
        if (file := configuration.source_of("plugins.require")) and Path(file).is_file():
            error.add_note(f"for all that {file} selects: guideway conform --config {shlex.quote(file)} --record")
        return
    field = error.field if isinstance(error, InvalidConfiguration) else ""
    if isinstance(error, PluginError):
        kind = error.plugin.rpartition("/")[2].partition(".")[0]
        of_kind = {kind: field for field, kind in KIND_OF.items()}
        field = of_kind.get(kind, "plugins.enable" if kind == "hooks" else kind)
    source = configuration.source_of(field)
    if source == INSTALLED:
        error.add_note("It was chosen because it is installed; --strategy NAME chooses others.")
    elif source:
        error.add_note(f"It comes from {source}.")
    if field == "grammar" and (source or "").startswith("--"):
        error.add_note(
            "--strategy (--grammar) names strategies; what to obey is given with --schema, --regex, --choice or "
            "--grammar-file."
        )
    if field == "plugins.lock":
        error.add_note(
            "It is read because plugins.require is 'certified'; guideway conform PLUGIN --record writes to it what "
            "passed."
        )


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "-" if value is None else json.dumps(value, default=str)


def _flag(key: Key) -> str:
    return f"--{'-'.join(key)}".replace("_", "-")


def _flags(key: Key) -> tuple[str, ...]:
    """Return all flags that set a key."""
    return (_flag(key), _flag(("no", *key)), *ALIASES.get(key, ()), *(("--strict",) if key == UNENFORCED else ()))


def _modifier(text: str) -> tuple[str, Any]:
    """Parse ``NAME`` or ``NAME={...}``."""
    name, equals, options = text.partition("=")
    if not name:
        raise ArgumentTypeError(f"must be NAME or NAME={{...}}, not {text!r}")
    return name, _value(options) if equals else {}


def _option(text: str) -> tuple[str, str, Any]:
    """Parse ``KIND.NAME.OPTION=VALUE``; a value that is not JSON is text."""
    place, equals, value = text.partition("=")
    component, _, option = place.rpartition(".")
    kind, _, name = component.partition(".")
    if not (equals and kind and name and option):
        raise ArgumentTypeError(f"must be KIND.NAME.OPTION=VALUE, not {text!r}")
    return component, option, _value(value)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
