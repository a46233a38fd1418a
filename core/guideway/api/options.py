"""Check options, configurations and parameters against type hints."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from guideway.errors import InvalidConfiguration, contain, did_you_mean

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "Range",
    "alternatives",
    "check_fields",
    "docstrings_of",
    "expected",
    "fits",
    "is_int",
    "known_fields_only",
    "mismatch",
    "parse_options",
    "short_repr",
]

Class = TypeVar("Class", bound=type)
Options = TypeVar("Options", bound="DataclassInstance")

WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", type(None): "None"}


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a number, or of the length of a string, in a type hint: ``Annotated[int, Range(1)]``. `least` and
    `most` are inclusive, `above` is exclusive."""

    least: float | None = None
    most: float | None = None
    above: float | None = None

    def __call__(self, value: Any) -> bool:
        number = len(value) if isinstance(value, str) else value
        return (  # no comparison is true of NaN
            (self.least is None or number >= self.least)
            and (self.most is None or number <= self.most)
            and (self.above is None or number > self.above)
        )

    def __str__(self) -> str:
        least, most, above = (
            f"{bound:g}" if isinstance(bound, float) else bound for bound in (self.least, self.most, self.above)
        )
        if least is not None and most is not None:
            return f"from {least} to {most}"
        bounds = (("above", above), ("of at least", least), ("at most", most))
        return " and ".join(f"{words} {bound}" for words, bound in bounds if bound is not None)


def fits(value: object, hint: Any) -> bool:
    """Return whether `value` is of the type `hint`: bool, int, float (an int fits too), str, a Literal, a tuple of one
    type (a list fits too), a mapping, a class, or a union of these. A hint may be ``Annotated`` with a `Range`, with
    other predicates, and with a description of the accepted values."""
    return _test(hint)(value)


def expected(hint: Any) -> str:
    """Describe the values of the type `hint` in words."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        words = [extra for extra in args[1:] if isinstance(extra, str)]
        if words:
            return words[0]
        ranges = " ".join(str(extra) for extra in args[1:] if isinstance(extra, Range))
        return "a string that is not empty" if args[0] is str else f"{expected(args[0])} {ranges}"
    if origin in (Union, types.UnionType):
        members = [expected(member) for member in args if member is not types.NoneType]
        return " or ".join(members) + ", or None" * (len(members) < len(args))
    if origin is Literal:
        return " or ".join(map(repr, args))
    if origin is tuple:
        return f"a list of {expected(args[0]).removeprefix('a ')}s" if args[0] in WORDS else "a list"
    if isinstance(origin or hint, type) and issubclass(origin or hint, Mapping):
        return "a mapping"
    return WORDS.get(hint) or str(getattr(hint, "__name__", hint))


def mismatch(name: str, value: object, hint: Any) -> str | None:
    """Return the error ``name must be ..., not ...`` if `value` does not fit `hint`, else None."""
    return None if _test(hint)(value) else f"{name} must be {expected(hint)}, not {short_repr(value)}"


def short_repr(value: object) -> str:
    """Return the repr of any `value`, shortened for an error message."""
    try:
        text = repr(value)
    except BaseException as error:  # an int of too many digits, or a foreign __repr__
        contain(error)
        return f"({type(value).__name__}, too large to show)"
    return text if len(text) <= 80 else f"{text[:77]}..."


def is_int(value: object) -> bool:
    """Return whether `value` is a whole number and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def parse_options(cls: type[Options], options: Mapping[str, Any], *, where: str) -> Options:
    """Create an instance of the dataclass `cls` from `options`.

    `where` is the place of the options in the configuration, such as ``grammar.llguidance``. Fields may have any type
    that `fits` knows. Raises `InvalidConfiguration` for an unknown key, naming the closest known one, and for a value
    of the wrong type.
    """
    known = {f.name: f for f in dataclasses.fields(cls) if f.init}
    hints = _hints(cls)
    for key, value in options.items():
        field = f"{where}.{key}"
        if key not in known:
            raise InvalidConfiguration(
                f"unknown option {key!r} of {where}; {alternatives(key, sorted(known))}", field=field
            )
        if wrong := mismatch(f"option {key!r} of {where}", value, hints[key]):
            raise InvalidConfiguration(wrong, field=field)
    missing = [
        name
        for name, f in known.items()
        if name not in options and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise InvalidConfiguration(f"{where} needs the option {missing[0]!r}", field=f"{where}.{missing[0]}")
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in options.items()})


def check_fields(instance: DataclassInstance, *, table: str = "") -> None:
    """Raise `InvalidConfiguration` for the first field of `instance` that does not fit its type. `table` is the table
    of the configuration that `instance` represents."""
    for name, hint in _hints(type(instance)).items():
        if wrong := mismatch(f"[{table}] {name}" if table else name, getattr(instance, name), hint):
            raise InvalidConfiguration(wrong, field=f"{table}.{name}" if table else name)


def known_fields_only(cls: Class) -> Class:
    """Decorate a dataclass so that the TypeError for an unknown keyword names the closest field."""
    init, known = vars(cls)["__init__"], [f.name for f in dataclasses.fields(cls) if f.init]

    @wraps(init)
    def wrapped(self: Any, /, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in known:
                raise TypeError(
                    f"{cls.__name__}() got an unexpected keyword argument {name!r}; {alternatives(name, known)}"
                )
        init(self, *args, **kwargs)

    cls.__init__ = wrapped  # type: ignore[misc]
    return cls


def alternatives(name: object, known: Iterable[str], what: str = "accepted") -> str:
    """Suggest what to write instead of `name`: ``did you mean 'this'? accepted: this, that``."""
    return f"{did_you_mean(name, known)} {what}: {', '.join(known) or 'none'}".lstrip()


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


@cache
def _test(hint: Any) -> Callable[[Any], bool]:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        tests = [_test(args[0]), *filter(callable, args[1:])]
        return lambda value: all(test(value) for test in tests)
    if origin in (Union, types.UnionType):
        members = [_test(member) for member in args]
        return lambda value: any(test(value) for test in members)
    if origin is tuple:
        item = _test(args[0])
        return lambda value: isinstance(value, list | tuple) and all(map(item, value))
    if origin is Literal:
        kinds = tuple(map(type, args))
        return lambda value: isinstance(value, kinds) and value in args  # arrays have no single truth value for ==
    if hint is int:
        return is_int
    if hint is float:
        return lambda value: isinstance(value, int | float) and not isinstance(value, bool)
    if hint is Any:
        return lambda _: True
    return lambda value: isinstance(value, origin or hint)


def docstrings_of(cls: type) -> dict[str, str]:
    """Return the docstrings below the fields of a class, each as one line, by field name. Empty if the source is not
    available, as Python keeps these strings nowhere else."""
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except OSError:
        return {}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for above, below in zip(definition.body, definition.body[1:], strict=False):
        match above, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = " ".join(text.split())
    return found
