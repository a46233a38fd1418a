"""The fields of a host's configuration that select plugins, and their rules, which all hosts share."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

from guideway.api.options import Range, alternatives
from guideway.api.steps import GRAMMAR_MASK
from guideway.errors import InvalidConfiguration
from guideway.plugins.operator_files import is_file, located, name_in

__all__ = ["LISTS", "Name", "Names", "Options", "component_name", "components", "freeze_components"]

Name: TypeAlias = Annotated[str, Range(1)]
Names: TypeAlias = Annotated[tuple[Name, ...], "a list of names"]
Options: TypeAlias = Annotated[Mapping[str, Mapping[str, Any]], "a mapping of 'kind.name' to options"]

LISTS = ("grammar", "modifiers", "worker_mixins")
"""The fields that select any number of components."""


def freeze_components(config: Any, kind_of: Mapping[str, str]) -> None:
    """Check and freeze the fields of a frozen dataclass that select components, and its ``options``. `kind_of` maps
    the field names to kinds; values have the right types. Lists become tuples (``host_environment`` too) of names and
    absolute paths, and
    ``options`` an immutable mapping. A field that is None selects components later, so the caller checks their options
    then. Raises `InvalidConfiguration`, naming the field."""
    for name in LISTS:
        if (value := getattr(config, name)) is not None:
            value = tuple(map(located, value))
            _check_names(name, kind_of[name], value)
            object.__setattr__(config, name, value)
    object.__setattr__(config, "host_environment", tuple(config.host_environment))
    later = {kind for name, kind in kind_of.items() if getattr(config, name) is None}
    _check_options(config.options, components(config, kind_of), later)
    try:
        options = _Frozen({component: _Frozen(options) for component, options in config.options.items()})
    except RecursionError as error:
        raise InvalidConfiguration("options are nested too deeply", field="options") from error
    object.__setattr__(config, "options", options)


def components(config: Any, kind_of: Mapping[str, str]) -> tuple[str, ...]:
    """Return the selected components as ``kind.name``, sorted."""
    used = []
    for name, kind in kind_of.items():
        value = getattr(config, name)
        used += [
            f"{kind}.{component_name(kind, address)}"
            for address in ([value] if isinstance(value, str) else value or ())
        ]
    return tuple(sorted(used))


def _check_options(options: Mapping[Any, object], used: Sequence[str], later: Collection[str]) -> None:
    for component, its_own in options.items():
        is_later = isinstance(component, str) and component.partition(".")[0] in later
        if component not in used and not is_later:
            raise InvalidConfiguration(
                f"options are given for {component!r}, which this configuration does not use; "
                f"{alternatives(component, used, 'used')}",
                field=f"options.{component}",
            )
        if not isinstance(its_own, Mapping) or not all(isinstance(key, str) for key in its_own):
            raise InvalidConfiguration(
                f"the options of {component!r} must map names to values, not {its_own!r}",
                field=f"options.{component}",
            )


class _Frozen(Mapping[str, Any]):
    """An immutable mapping. Unlike `types.MappingProxyType` it pickles, and it returns copies of the lists it
    contains."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Any]) -> None:
        self._items = {key: _copy(value) for key, value in items.items()}

    def __getitem__(self, key: str) -> Any:
        return _copy(self._items[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return repr(self._items)


def _copy(value: Any) -> Any:
    """Copy `value` with all mappings, lists, tuples and sets in it; other objects are shared."""
    if isinstance(value, _Frozen):
        return value
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    if type(value) in (list, tuple, set):  # not a named tuple, which takes no list
        return type(value)([_copy(item) for item in value])
    return value


def _check_names(field_name: str, kind: str, addresses: Sequence[str]) -> None:
    """Raise `InvalidConfiguration` if two components have the same name, which identifies options, payloads and
    results."""
    names: dict[str, str] = {}
    for address in addresses:
        name = component_name(kind, address)
        if name in names:
            raise InvalidConfiguration(
                f"{field_name} has {kind} {name!r} twice: {names[name]!r} and {address!r}", field=field_name
            )
        if field_name == "modifiers" and name == GRAMMAR_MASK:
            raise InvalidConfiguration(
                f"modifiers has {address!r}, but the name {name!r} is reserved for the grammar mask", field=field_name
            )
        names[name] = address


def component_name(kind: str, address: str) -> str:
    """Return the component's name in ``name``, ``kind.name``, ``distribution/name`` or ``/path/mine.py:Mine``. Raises
    `InvalidConfiguration` for a file that cannot be read."""
    if is_file(address):
        return name_in(address)
    return address.rpartition("/")[2].removeprefix(f"{kind}.")
