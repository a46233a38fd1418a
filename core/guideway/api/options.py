"""Turn what somebody wrote by name into the frozen dataclass it is meant for, refusing what that does not know."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Iterable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from guideway.errors import InvalidConfiguration

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["known_fields_only", "parse_options"]

Class = TypeVar("Class", bound=type)
Options = TypeVar("Options", bound="DataclassInstance")


def parse_options(cls: type[Options], options: Mapping[str, Any], *, where: str) -> Options:
    """An instance of the dataclass `cls` from `options`.

    `where` names the place the options were written, for example ``grammar.llguidance``. Fields may be bool, int,
    float, str, a Literal of these, a tuple of them, None beside one of them, or a mapping. Raises
    `InvalidConfiguration` for an unknown key, naming the closest known one, and for a value of the wrong type.
    """
    known = {f.name: f for f in dataclasses.fields(cls) if f.init}
    hints = get_type_hints(cls)
    for key, value in options.items():
        if key not in known:
            raise InvalidConfiguration(
                f"unknown option {key!r} of {where}; {_accepted(key, sorted(known))}", field=f"{where}.{key}"
            )
        if not _fits(value, hints[key]):
            raise InvalidConfiguration(
                f"option {key!r} of {where} must be {_describe(hints[key])}, not {value!r}", field=f"{where}.{key}"
            )
    missing = [
        name
        for name, f in known.items()
        if name not in options and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise InvalidConfiguration(f"{where} needs the option {missing[0]!r}", field=f"{where}.{missing[0]}")
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in options.items()})


def known_fields_only(cls: Class) -> Class:
    """Decorate a dataclass: the TypeError that an unknown keyword raises names the closest field."""
    init, known = vars(cls)["__init__"], [f.name for f in dataclasses.fields(cls) if f.init]

    @wraps(init)
    def checked(self: Any, /, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in known:
                raise TypeError(
                    f"{cls.__name__}() got an unexpected keyword argument {name!r}; {_accepted(name, known)}"
                )
        init(self, *args, **kwargs)

    cls.__init__ = checked  # type: ignore[misc]
    return cls


def _accepted(name: str, known: Iterable[str]) -> str:
    """What to write instead of `name`."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"{f'did you mean {close[0]!r}? ' if close else ''}accepted: {', '.join(known) or 'none'}"


def _fits(value: object, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, member) for member in get_args(hint))
    if origin is Mapping:
        return isinstance(value, Mapping)
    if origin is tuple:
        return isinstance(value, list | tuple) and all(_fits(item, get_args(hint)[0]) for item in value)
    if hint is None or hint is type(None):
        return value is None
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(hint, type):
        return isinstance(value, hint)
    return value in get_args(hint)


def _describe(hint: Any) -> str:
    if get_origin(hint) is Mapping:
        return "a mapping"
    if get_origin(hint) is None and isinstance(hint, type):
        return hint.__name__
    return str(hint).replace("typing.", "")
