"""Python values as JSON, for messages from the serving process to its hosts.

A JSON value other than a dict is encoded as itself, and every other value as an object with one key, its kind. Hosts
trust the serving process: they import a class by its name. The serving process decodes nothing that hosts send.
"""

from __future__ import annotations

import dataclasses
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from functools import lru_cache
from pkgutil import resolve_name
from types import FunctionType
from typing import Any

import numpy as np

__all__ = ["decode", "encode", "pack", "unpack"]

MOST_REMEMBERED = 16
"""Values of `pack` to remember: few, because users' constraints make them large."""
PLAIN = (str, int, float, bool, type(None))


def encode(value: Any) -> Any:
    """Return a value as JSON. Raises TypeError for a value that `decode` could not restore."""
    kind: Any = type(value)
    if kind in PLAIN:
        return value
    if kind is list:
        return [encode(each) for each in value]
    if kind is tuple:
        if value and all(type(each) is bytes for each in value):  # the tokens of a vocabulary
            return {"texts": [each.decode("latin-1") for each in value]}
        return {"tuple": [encode(each) for each in value]}
    if kind is bytes:
        return {"bytes": b64encode(value).decode()}
    if kind is frozenset or kind is set:
        return {kind.__name__: [encode(each) for each in value]}
    if isinstance(value, Enum):
        return {"enum": [_name(kind), value.name]}
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return {"array": [value.dtype.str, list(value.shape), b64encode(value.tobytes()).decode()]}
    if isinstance(value, np.generic):
        return {"number": encode(np.asarray(value))}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"made": [_name(kind), {name: encode(getattr(value, name)) for name in _fields(kind)}]}
    if isinstance(value, Mapping):
        return {"dict": [[encode(key), encode(each)] for key, each in value.items()]}
    if isinstance(value, type):
        return {"class": _name(value)}
    bases: tuple[Any, ...] = (str, int, float, tuple)
    for base in bases:  # a value of a derived class
        if isinstance(value, base):
            return {"derived": [_name(kind), encode(base(value))]}
    if kind.__module__ == "builtins" or isinstance(value, FunctionType):
        raise TypeError(f"a {kind.__name__} cannot be sent to another process")
    match value.__reduce_ex__(2):  # for example a vocabulary's encoder, which can be pickled
        case (make, arguments, *rest) if not any(rest[1:]):
            return {"reduced": [_name(make), encode(arguments), encode(rest[0] if rest else None)]}
    raise TypeError(f"a {kind.__name__} cannot be sent to another process")


def decode(value: Any) -> Any:
    """Return the value that `encode` encoded."""
    if type(value) is list:
        return [decode(each) for each in value]
    if type(value) is not dict:
        return value
    ((what, given),) = value.items()
    return DECODERS[what](given)


@lru_cache(maxsize=MOST_REMEMBERED)
def pack(value: Hashable) -> str:
    """Return a value as JSON text, for `unpack`. Both remember recent values: many objects have equal ones. Values that
    are equal must have parts of the same types."""
    return json.dumps(encode(value))


@lru_cache(maxsize=MOST_REMEMBERED)
def unpack(text: str) -> Any:
    """Return the value that `pack` encoded."""
    return decode(json.loads(text))


def _name(kind: Any) -> str:
    if "<locals>" in kind.__qualname__:
        raise TypeError(f"the class {kind.__qualname__} cannot be imported by its name")
    return f"{kind.__module__}:{kind.__qualname__}"


@lru_cache
def _fields(kind: Any) -> tuple[str, ...]:
    """Return the fields to send of a dataclass. Fields without `repr` are caches."""
    return tuple(each.name for each in dataclasses.fields(kind) if each.init and each.repr)


def _array(given: Any) -> Any:
    dtype, shape, data = given
    return np.frombuffer(b64decode(data), np.dtype(dtype)).reshape(shape)


def _reduced(given: Any) -> Any:
    name, arguments, state = given
    made, state = resolve_name(name)(*decode(arguments)), decode(state)
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)
    elif state is not None:
        made.__dict__.update(state)
    return made


DECODERS: dict[str, Callable[[Any], Any]] = {
    "texts": lambda given: tuple([each.encode("latin-1") for each in given]),
    "tuple": lambda given: tuple([decode(each) for each in given]),
    "bytes": b64decode,
    "frozenset": lambda given: frozenset(map(decode, given)),
    "set": lambda given: set(map(decode, given)),
    "enum": lambda given: resolve_name(given[0])[given[1]],
    "array": _array,
    "number": lambda given: decode(given)[()],
    "made": lambda given: resolve_name(given[0])(**{name: decode(each) for name, each in given[1].items()}),
    "dict": lambda given: {decode(key): decode(each) for key, each in given},
    "derived": lambda given: resolve_name(given[0])(decode(given[1])),
    "class": resolve_name,
    "reduced": _reduced,
}
