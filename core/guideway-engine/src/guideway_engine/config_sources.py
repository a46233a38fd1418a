"""Merging of a configuration from arguments, environment variables, a TOML file and defaults, in this precedence."""

from __future__ import annotations

import json
import os
import tomllib
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from guideway.api.options import alternatives
from guideway.api.reasoning import ReasoningConfig
from guideway.command_line.usage import WrongUsage
from guideway.errors import InvalidConfiguration, did_you_mean
from guideway.files import MIB, read_file, reason
from guideway.plugins import PluginIndex, PluginSettings
from guideway.plugins.configuration import LISTS, component_name
from guideway.plugins.kinds import HOOKS
from guideway.plugins.limits import Limits
from guideway.plugins.operator_files import located

from guideway_engine.fields import Field, fields_of
from guideway_engine.settings import KIND_OF, EngineSettings

__all__ = [
    "API_KEY_VARIABLE",
    "KEYS",
    "Configuration",
    "Key",
    "Layer",
    "Setting",
    "WrongFlag",
    "from_arguments",
    "read_layers",
]

T = TypeVar("T")


class WrongFlag(InvalidConfiguration, WrongUsage):
    """Raised for a wrong value of a flag."""


Key: TypeAlias = tuple[str, ...]
"""``(field,)``, ``(table, field)`` or ``("options", "kind.name", option)``."""

PREFIX = "GUIDEWAY_"
FILE_VARIABLE = "GUIDEWAY_CONFIG"
OPTIONS_VARIABLE = "GUIDEWAY_OPTIONS"
API_KEY_VARIABLE = "GUIDEWAY_API_KEY"
"""Read by ``guideway serve``; not a setting of an engine."""

TABLES: dict[str, Any] = {"reasoning": ReasoningConfig, "limits": Limits, "plugins": PluginSettings}
"""Fields that are tables of settings."""

KEYS: dict[Key, Field] = {
    **{(name,): field for name, field in fields_of(EngineSettings).items() if name not in ("options", *TABLES)},
    **{(table, name): field for table, cls in TABLES.items() for name, field in fields_of(cls).items()},
}
"""Keys that can be set, except for options of components."""

VARIABLES = {PREFIX + "_".join(key).upper(): key for key in KEYS}


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and its source."""

    value: Any
    source: str
    """Name of the source, such as ``--max-num-seqs``, ``GUIDEWAY_MAX_NUM_SEQS`` or ``prod.toml``."""


Layer: TypeAlias = dict[Key, Setting]
"""Settings of one source."""


@dataclass(frozen=True)
class Configuration:
    """Merged settings of all sources."""

    settings: Mapping[Key, Setting]
    """Values that are set; all others have their default."""
    unused: Mapping[Key, Setting]
    """Options of components that were replaced by a source of higher precedence."""

    @staticmethod
    def of(layers: Iterable[Layer]) -> Configuration:
        """Merge `layers`, in order of rising precedence. Lists are replaced as a whole, options one by one."""
        layers = list(layers)
        settings = {key: setting for layer in layers for key, setting in layer.items()}
        used = _find_used(settings)
        unused = {}
        so_far: Layer = {}
        for layer in layers:
            so_far |= layer
            replaced = _find_used(so_far) - used
            for key, setting in layer.items():
                if key[0] == "options" and key[1] in replaced and settings.get(key) is setting:
                    unused[key] = settings.pop(key)
        return Configuration(settings, unused)

    def build(self, cls: Callable[..., T]) -> T:
        """Return a configuration of class `cls`. Raises `InvalidConfiguration`, which names the source of the wrong
        value."""
        if ("model",) not in self.settings:
            raise InvalidConfiguration(
                f"no model is configured; give --model, {PREFIX}MODEL, or model in a configuration file "
                f"(--config, {FILE_VARIABLE})",
                field="model",
            )
        values = {key[0]: setting.value for key, setting in self.settings.items() if key[0] not in ("options", *TABLES)}
        tables = {table: self._table(table) for table in TABLES}
        return self._prefix_errors(lambda: cls(**values, options=self.options(), **tables))

    def options(self) -> dict[str, dict[str, Any]]:
        """Return the options of components, by ``kind.name``."""
        options: dict[str, dict[str, Any]] = {}
        for key, setting in self.settings.items():
            if key[0] == "options":
                options.setdefault(key[1], {}).update(dict.fromkeys(key[2:], setting.value))
        return options

    def plugin_settings(self) -> PluginSettings:
        """Return the settings of plugins. Raises `InvalidConfiguration`, which names the source of the wrong value."""
        settings: PluginSettings = self._table("plugins")
        return settings

    def _table(self, table: str) -> Any:
        values = {key[1]: setting.value for key, setting in self.settings.items() if key[0] == table}
        return self._prefix_errors(lambda: TABLES[table](**values))

    def source_of(self, field: str) -> str | None:
        """Return the source of the value of `field`, named as in errors; None for a default."""
        for key, setting in self.settings.items():
            name = ".".join(key)
            if field in (name, name.removeprefix("options.")) or name.startswith(f"{field}."):
                return setting.source
        return None

    def _prefix_errors(self, make: Callable[[], T]) -> T:
        try:
            return make()
        except InvalidConfiguration as error:
            if source := self.source_of(error.field):
                kind = WrongFlag if source.startswith("--") else InvalidConfiguration
                raise kind(f"{source}: {error}", field=error.field) from error
            raise


def read_layers(path: str | os.PathLike[str] | None, environ: Mapping[str, str], arguments: Layer) -> list[Layer]:
    """Read the layers of file, environment and arguments, in this order. `path` replaces GUIDEWAY_CONFIG. Raises
    `InvalidConfiguration`."""
    layers = [_from_environment(environ), arguments]
    if path is not None:
        return [_from_file(Path(path)), *layers]
    if environ.get(FILE_VARIABLE):
        return [_from_file(Path(environ[FILE_VARIABLE]), f" ({FILE_VARIABLE})"), *layers]
    return layers


def from_arguments(values: Mapping[str, Any]) -> Layer:
    """Return the layer for keyword arguments, which are fields of `EngineConfig`."""
    layer: Layer = {}
    for name, value in values.items():
        source = f"argument {name}"
        if name == "options":
            layer |= _options(value, source)
        elif name in TABLES:
            value = asdict(value) if isinstance(value, TABLES[name]) else value
            layer |= _table(name, value, source)
        else:
            _check_known((name,), source)
            layer[(name,)] = Setting(value, source)
    return layer


def _from_environment(environ: Mapping[str, str]) -> Layer:
    """Return the layer of the environment. Empty variables count as unset."""
    layer: Layer = {}
    unknown = []
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX) or not text or variable in (FILE_VARIABLE, API_KEY_VARIABLE):
            continue
        if variable == OPTIONS_VARIABLE:
            try:
                options = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise InvalidConfiguration(
                    f'{variable} must be JSON, such as {{"kind.name": {{"option": 1}}}}: {error}', field="options"
                ) from error
            layer |= _options(options, variable)
        elif variable in VARIABLES:
            key = VARIABLES[variable]
            try:
                layer[key] = Setting(KEYS[key].parse(text), variable)
            except ArgumentTypeError as error:
                raise InvalidConfiguration(f"{variable} {error}", field=".".join(key)) from error
        else:
            unknown.append(variable)
    if unknown:
        _check_foreign(unknown)
    return layer


def _check_foreign(variables: list[str]) -> None:
    """Refuse variables that are not read, except those that begin with the name of a ``hooks`` component: such
    components take no options and may have variables of their own."""
    records = PluginIndex.scan().records
    known = [name.removeprefix(PREFIX) for name in (*VARIABLES, FILE_VARIABLE, OPTIONS_VARIABLE)]
    for variable in variables:
        rest = variable.removeprefix(PREFIX)
        named = [record for record in records if f"{rest}_".startswith(f"{_in_capitals(record.name)}_")]
        if any(record.kind == HOOKS for record in named):
            continue
        hints = [did_you_mean(rest, known).replace("'", f"'{PREFIX}", 1)]
        if taking := sorted({f"{record.kind}.{record.name}" for record in named if record.kind in KIND_OF.values()}):
            hints.append(f"{' and '.join(taking)} would take options from {OPTIONS_VARIABLE};")
        hints.append(
            f"a plugin's own variables begin with {PREFIX} and the name of its {HOOKS} component: is it installed?"
        )
        raise InvalidConfiguration(
            f"unknown environment variable {variable}; {' '.join(filter(None, hints))}",
            field=variable,
        )


def _in_capitals(name: str) -> str:
    return name.upper().replace("-", "_")


def _from_file(path: Path, named_by: str = "") -> Layer:
    """Return the layer of a TOML file. Paths of the model, the lock file and plugins are relative to its folder."""
    table = _parse(path, named_by)
    layer: Layer = {}
    for name, value in table.items():
        if name == "options":
            layer |= _options(value, f"{path}, [options]", lambda component: f'{path}, [options."{component}"]')
        elif name in TABLES:
            layer |= _table(name, value, str(path))
        else:
            _check_known((name,), str(path))
            _check_quotes((name,), value, str(path))
            layer[(name,)] = Setting(value, str(path))
    folder = path.absolute().parent
    for key, place in ((("model",), _model), (("plugins", "lock"), _beside)):
        if key in layer and isinstance(value := layer[key].value, str) and value:
            layer[key] = Setting(place(folder, value), layer[key].source)
    lists: list[Key] = [*((name,) for name in LISTS), ("plugins", "enable")]
    for listed in lists:
        if listed in layer and isinstance(names := layer[listed].value, list):
            names = [located(name, folder) if isinstance(name, str) else name for name in names]
            layer[listed] = Setting(names, layer[listed].source)
    return layer


def _parse(path: Path, named_by: str) -> dict[str, Any]:
    def refused(why: str, cause: Exception) -> InvalidConfiguration:
        error = InvalidConfiguration(f"the configuration file {str(path)!r}{named_by} {why}", field="config")
        error.__cause__ = cause
        return error

    try:
        data = read_file(path.expanduser(), MIB)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        raise refused(f"cannot be read: {reason(error)}", error) from error
    text = ""
    try:
        return tomllib.loads(text := data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        before = data[: error.start].split(b"\n")
        raise refused(f"is not UTF-8 (at line {len(before)}, column {len(before[-1]) + 1})", error) from error
    except RecursionError as error:
        raise refused("is nested too deeply", error) from error
    except ValueError as error:  # TOMLDecodeError, or ValueError for a number with too many digits
        lines = text.split("\n")
        end = f"at line {len(lines)}, column {len(lines[-1]) + 1}, its end"
        raise refused(f"is not TOML: {str(error).replace('at end of document', end)}", error) from error


def _table(table: str, value: Any, source: str) -> Layer:
    """Return the layer of one table."""
    if not isinstance(value, Mapping):
        raise InvalidConfiguration(f"{source}: {table} must be a table, not {value!r}", field=table)
    layer: Layer = {}
    for name, item in value.items():
        _check_known((table, name), f"{source}, [{table}]")
        _check_quotes((table, name), item, f"{source}, [{table}]")
        layer[(table, name)] = Setting(item, source)
    return layer


def _options(value: Any, where: str, place: Callable[[str], str] | None = None) -> Layer:
    """Return the layer of components' options: one setting per option, and an empty one per component, so that a
    component without options is known too.

    Errors name `where` as the source, or `place` of the component if given.
    """
    if not isinstance(value, Mapping):
        raise InvalidConfiguration(
            f"{where}: options must map 'kind.name' to the component's options, not {value!r}", field="options"
        )
    layer: Layer = {}
    for component, options in value.items():
        kind, dot, name = str(component).partition(".")
        if not dot and isinstance(options, Mapping) and kind in KIND_OF.values():
            name = next(iter(options), "name")
            raise InvalidConfiguration(
                f'{where}: a table of options quotes kind and name together; write [options."{kind}.{name}"]',
                field=f"options.{component}",
            )
        if not name or kind not in KIND_OF.values():
            raise InvalidConfiguration(
                f"{where}: {component!r} is not a component with options; "
                f"{alternatives(kind, sorted(KIND_OF.values()), 'kinds')}; write 'kind.name'",
                field=f"options.{component}",
            )
        if not isinstance(options, Mapping):
            raise InvalidConfiguration(
                f"{where}: the options of {component!r} must map names to values, not {options!r}",
                field=f"options.{component}",
            )
        source = where if place is None else place(component)
        layer[("options", component)] = Setting({}, source)
        layer |= {("options", component, option): Setting(item, source) for option, item in options.items()}
    return layer


def _check_known(key: Key, where: str) -> None:
    if key not in KEYS:
        known = [other[-1] for other in KEYS if other[:-1] == key[:-1]] + ["options", *TABLES] * (len(key) == 1)
        raise InvalidConfiguration(
            f"{where}: unknown key {key[-1]!r}; {alternatives(key[-1], known, 'known')}",
            field=".".join(map(str, key)),
        )


def _check_quotes(key: Key, value: Any, where: str) -> None:
    """Raise `InvalidConfiguration`, with the value to write, for text in place of a value that is not text."""
    may_be_text = key == ("model",) or isinstance(KEYS[key].default, str) or KEYS[key].hint == (str | None)
    if not isinstance(value, str) or may_be_text:
        return
    try:
        meant = KEYS[key].parse(value)
    except ArgumentTypeError:
        return  # nothing to suggest; the check of the field's type reports it
    if meant == value:
        return
    write = "leave it out" if meant is None else f"write {key[-1]} = {json.dumps(meant)}"
    raise InvalidConfiguration(
        f"{where}: {key[-1]} must be {KEYS[key].expected}, not the text {value!r}; {write}", field=".".join(key)
    )


def _beside(folder: Path, value: str) -> str:
    return str(folder / Path(value).expanduser())


def _model(folder: Path, value: str) -> str:
    """Return the path of a model relative to `folder`. A value that may be a component's name is a path only if that
    folder exists."""
    if value.startswith((".", "~")) or (folder / value).is_dir():
        return _beside(folder, value)
    return value


def _find_used(settings: Mapping[Key, Setting]) -> set[str]:
    """Return the components selected by `settings` and defaults, ignoring malformed values."""
    used = set()
    for name, kind in KIND_OF.items():
        value = settings[(name,)].value if (name,) in settings else KEYS[(name,)].default
        addresses = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else []
        used |= {f"{kind}.{component_name(kind, address)}" for address in addresses if isinstance(address, str)}
    return used
