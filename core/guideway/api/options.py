"""Does a value that somebody wrote fit a type hint, and if not, what to say? Options, configurations and parameters are
all read with this."""

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
    """Bounds in a type hint, ``Annotated[int, Range(1)]``: of a number, or of the length of a string. All but `above`
    belong to the range."""

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
    """Return whether `value` is of the type `hint`: bool, int, float (an int is one too), str, a Literal, a tuple of
    one type (a list is one too), a mapping, a class, a union of these; or one of these ``Annotated``: with a
    `Range`, with other functions that judge the value, and with the words for what is expected."""
    return _test(hint)(value)


def expected(hint: Any) -> str:
    """Describe in words the values of the type `hint`."""
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
    """Describe what is wrong if `value` does not fit `hint`: ``name must be ..., not ...``. None if it fits."""
    return None if _test(hint)(value) else f"{name} must be {expected(hint)}, not {short_repr(value)}"


def short_repr(value: object) -> str:
    """`value` for an error message: short, and whatever it is."""
    try:
        text = repr(value)
    except BaseException as error:  # an int of too many digits, or a stranger's __repr__
        contain(error)
        return f"({type(value).__name__}, too large to show)"
    return text if len(text) <= 80 else f"{text[:77]}..."


def is_int(value: object) -> bool:
    """Return whether `value` is a whole number and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def parse_options(cls: type[Options], options: Mapping[str, Any], *, where: str) -> Options:
    """An instance of the dataclass `cls` from `options`.

    `where` names the place the options were written, for example ``grammar.llguidance``. Fields may be of any type that
    `fits` knows. Raises `InvalidConfiguration` for an unknown key, naming the closest known one, and for a value of the
    wrong type.
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
    """Raise `InvalidConfiguration` for the first field of `instance` that is not of its type. `table` names the part of
    the configuration that it is."""
    for name, hint in _hints(type(instance)).items():
        if wrong := mismatch(f"[{table}] {name}" if table else name, getattr(instance, name), hint):
            raise InvalidConfiguration(wrong, field=f"{table}.{name}" if table else name)


def known_fields_only(cls: Class) -> Class:
    """Decorate a dataclass: the TypeError that an unknown keyword raises names the closest field."""
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
        return lambda value: isinstance(value, kinds) and value in args  # an array cannot be asked whether it is equal
    if hint is int:
        return is_int
    if hint is float:
        return lambda value: isinstance(value, int | float) and not isinstance(value, bool)
    if hint is Any:
        return lambda _: True
    return lambda value: isinstance(value, origin or hint)


def docstrings_of(cls: type) -> dict[str, str]:
    """Return the strings that stand below the fields of a class, in one line each, by name. Python keeps them in the
    source only: without that there are none."""
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
