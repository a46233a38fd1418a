"""Check a component's class against the contract of its kind."""

from __future__ import annotations

import inspect
import re
from collections.abc import Container, Iterable, Iterator, Sequence, Set
from functools import lru_cache
from types import FunctionType
from typing import Any

from guideway import api
from guideway.api.options import short_repr
from guideway.errors import ConformanceError
from guideway.plugins import moved
from guideway.plugins.index import PluginRecord
from guideway.plugins.kinds import KINDS

__all__ = ["ContractViolation", "check_built", "check_class", "check_returned", "checked_names", "checked_support"]

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class ContractViolation(TypeError):
    """A plugin's class or object violates the contract of its kind."""


def check_class(record: PluginRecord, component: Any) -> None:
    """Raise `ContractViolation` with all problems and hints to fix them."""
    kind = KINDS[record.kind]
    base = getattr(api, kind.base)
    if not (isinstance(component, type) and issubclass(component, base)):
        what = component.__qualname__ if isinstance(component, type) else f"{component!r}, which is no class"
        raise ContractViolation(f"{kind.hook} must return a subclass of guideway.api.{kind.base}, not {what}")
    problems = [*_attributes(record, component, base), *_contract(component), *_find_old(record.kind, component, base)]
    problems += _signatures(record.kind, component, base)
    problems += _without_effect(component, base)
    transform = getattr(component, "transform", None)
    if base is api.LogitModifier and isinstance(transform, type) and issubclass(transform, api.LogitTransform):
        half = api.Sampler if issubclass(transform, api.Sampler) else api.LogitTransform
        problems += _signatures(record.kind, transform, half)
    _refuse(problems)


def check_built(kind: str, built: Any) -> None:
    """Raise `ContractViolation` with problems of a modifier or device that only an instance shows."""
    if kind == "modifier":
        _refuse(_find_dropped(kind, type(built), getattr(built, "__dict__", ()), api.LogitModifier))
    else:
        _refuse(_signatures(kind, type(built.ops), api.ArrayOps))


def check_returned(returned: Any, base: type) -> None:
    """Raise `ConformanceError` if an object that a strategy returned has methods that do not accept the arguments of
    `base`, which is `CompiledGrammar` or `Matcher`. Checks each class once."""
    if problems := _problems_of_returned(type(returned), base):  # type: ignore[arg-type]  # a class can be hashed
        raise ConformanceError(problems)


def checked_support(support: Any) -> api.Support:
    """Return the result of a strategy's ``supports``. Raises `ConformanceError` if it is not a valid `Support`."""
    if not isinstance(support, api.Support):
        raise ConformanceError(f"supports must return a Support, not {type(support).__name__}")
    for name in ("enforced", "unenforced"):
        names = getattr(support, name)
        if not isinstance(names, frozenset) or not all(isinstance(each, str) for each in names):
            raise ConformanceError(f"{name} of a Support must be a frozenset of names, not {short_repr(names)}")
    if not isinstance(support.reason, str | None):
        raise ConformanceError(f"reason of a Support must be a string or None, not {short_repr(support.reason)}")
    return support


def checked_names(names: Any) -> frozenset[str]:
    """Return a strategy's ``takes``. Raises `ConformanceError` if it is not a set of names."""
    if not isinstance(names, Set) or not all(isinstance(each, str) for each in names):
        raise ConformanceError(f"takes must be a set of names, not {short_repr(names)}")
    return frozenset(names)


@lru_cache(maxsize=256)
def _problems_of_returned(cls: type, base: type) -> str:
    return "\n".join(_signatures("grammar", cls, base))


def _refuse(problems: Iterable[str]) -> None:
    if text := "\n".join(problems):
        raise ContractViolation(text)


def _attributes(record: PluginRecord, component: Any, base: type) -> Iterator[str]:
    name = component.__qualname__
    if abstract := sorted(getattr(component, "__abstractmethods__", ())):
        yield f"{name} is abstract: it does not implement {', '.join(abstract)}"
    missing = [a for a in _class_variables(base) if a != "contract" and not hasattr(component, a)]
    if missing:
        yield f"{name} does not set the class variable {', '.join(missing)}"
    if "name" not in missing and component.name != record.name:
        said = "file" if record.is_file else "entry point"
        yield f"{name}.name is {component.name!r}, but its {said} says {record.name!r}"


def _class_variables(base: type) -> Iterator[str]:
    for cls in base.__mro__:
        for attribute, annotation in inspect.get_annotations(cls).items():
            if "ClassVar" in str(annotation):
                yield attribute


def _contract(component: Any) -> Iterator[str]:
    name = component.__qualname__
    stating = next((cls for cls in component.__mro__ if "contract" in vars(cls)), None)
    # the contract of a guideway class does not apply to classes derived from it
    if stating is None or (stating is not component and _is_ours(stating)):
        yield (
            f"{name} does not set contract, the version of the contract it was written for\n"
            f'hint: write contract = "{api.CONTRACT}" in the class, beside its name'
        )
        return
    contract = component.contract
    if not isinstance(contract, str) or not re.fullmatch(r"\d+\.\d+", contract):
        yield f"{name}.contract must be a string such as {api.CONTRACT!r}, not {contract!r}"
        return
    major, minor = map(int, contract.split("."))
    host_major, host_minor = map(int, api.CONTRACT.split("."))
    if major != host_major or minor > host_minor:
        newer = (major, minor) > (host_major, host_minor)
        yield (
            f"{name} is written for contract {contract}, but this guideway has {api.CONTRACT}\n"
            f"hint: upgrade {'guideway' if newer else 'the plugin'}"
        )


def _find_old(kind: str, component: Any, base: Any) -> Iterator[str]:
    """Yield problems with attributes of an earlier contract."""
    own = {attribute for cls in component.__mro__ if not _is_ours(cls) for attribute in vars(cls)}
    yield from _find_dropped(kind, component, own, base)
    if kind not in ("modifier", "grammar"):
        return
    example = api.Example if kind == "modifier" else api.GrammarExample
    given, instead = component.examples, "Example(options={...})" if kind == "modifier" else "GrammarExample(...)"
    if isinstance(given, str) or not isinstance(given, Sequence):
        yield (
            f"{component.__qualname__}.examples must be a sequence, not {type(given).__name__}\n"
            f"hint: write examples = ({instead},), with {example.__name__} of guideway.api"
        )
    elif others := sorted({type(one).__name__ for one in given if not isinstance(one, example)}):
        yield f"{component.__qualname__}.examples holds {', '.join(others)}\nhint: write {instead} of guideway.api"


def _without_effect(cls: Any, base: Any) -> Iterator[str]:
    """Yield problems with overridden methods that are never called."""
    if base is api.LogitModifier and cls.compile is base.compile and cls.compile_key is not base.compile_key:
        yield (
            f"{cls.__qualname__}.compile_key does nothing without compile\n"
            "hint: implement compile(self, request, grammar), whose result requests with equal keys share, or delete "
            "compile_key"
        )


def _find_dropped(kind: str, component: type, own: Container[str], base: type) -> Iterator[str]:
    """Yield attributes that an earlier contract had and this one does not."""
    for (of_kind, attribute), instead in moved.ATTRIBUTES.items():
        if of_kind == kind and attribute in own and not hasattr(base, attribute):
            yield f"{component.__qualname__}.{attribute} is no longer part of the contract\nhint: {instead}"


def _signatures(kind: str, component: Any, base: type) -> Iterator[str]:
    """Yield methods that do not accept the contract's arguments: by position, except those after a ``*``."""
    for method, declared in _methods(base).items():
        own = inspect.getattr_static(component, method, declared)
        if own is declared:  # or the class is not derived from guideway's, and delegates the method
            continue
        said = f"{component.__qualname__}.{method}"
        if not callable(getattr(component, method)):
            yield f"{said} must be a method"
            continue
        if isinstance(declared, classmethod) and not isinstance(own, classmethod | staticmethod):
            yield f"{said} must be a classmethod"
            continue
        wanted = _parameters(declared)
        try:
            given = _parameters(own)
        except (TypeError, ValueError):  # an extension module without signatures
            continue
        if problem := _misfit(given, wanted):
            missing = wanted[_room(given) :]
            hints = [moved.PARAMETERS.get((kind, method, parameter.name)) for parameter in missing]
            yield "\n".join(
                [
                    f"{said}({_text(given)}) does not fit the contract's {method}({_text(wanted)}): {problem}",
                    *(f"hint: {hint}" for hint in hints if hint),
                ]
            )


def _methods(base: type) -> dict[str, Any]:
    """Return the methods of the contract that a plugin may override."""
    found: dict[str, Any] = {}
    for cls in filter(_is_ours, base.__mro__):
        for name, value in vars(cls).items():
            if (name == "__init__" or not name.startswith("_")) and isinstance(value, FunctionType | classmethod):
                found.setdefault(name, value)
    return found


def _parameters(function: Any) -> list[inspect.Parameter]:
    """Return the parameters that a caller passes. Raises TypeError or ValueError if they are unknown."""
    if isinstance(function, staticmethod):
        return list(inspect.signature(function.__func__).parameters.values())
    inner = function.__func__ if isinstance(function, classmethod) else function
    parameters = list(inspect.signature(inner).parameters.values())
    takes_self = parameters and parameters[0].kind in POSITIONAL
    return parameters[1:] if takes_self else parameters


def _misfit(given: list[inspect.Parameter], wanted: list[inspect.Parameter]) -> str | None:
    """Return why a method with the parameters `given` cannot be called with the arguments of `wanted`, or None."""
    keywords = [parameter.name for parameter in wanted if parameter.kind is parameter.KEYWORD_ONLY]
    names = [parameter.name for parameter in wanted if parameter.name not in keywords]
    if unknown := [] if any(p.kind is p.VAR_KEYWORD for p in given) else _find_unnamed(given[len(names) :], keywords):
        return f"it does not accept {', '.join(unknown)}, which hosts pass by name"
    places = [parameter for parameter in given if parameter.kind in POSITIONAL]
    if (room := _room(given)) < len(names):
        return f"it does not accept {', '.join(names[room:])}"
    beyond = [*places[len(names) :], *(p for p in given if p.kind is p.KEYWORD_ONLY)]
    required = [p.name for p in beyond if p.default is p.empty and p.name not in keywords]
    if required:
        return f"it requires {', '.join(required)}, which no host passes"
    for place, name in zip(places, names, strict=False):
        if place.name != name and place.name in names:
            return f"hosts pass arguments by position, but {place.name!r} is at the position of {name!r}"
    return None


def _find_unnamed(parameters: list[inspect.Parameter], keywords: list[str]) -> list[str]:
    """Return the `keywords` that no parameter accepts by name."""
    taken = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    return [name for name in keywords if name not in taken]


def _room(parameters: list[inspect.Parameter]) -> int:
    """Return how many arguments can be passed by position."""
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return 1 << 30
    return sum(parameter.kind in POSITIONAL for parameter in parameters)


def _text(parameters: list[inspect.Parameter]) -> str:
    return ", ".join(["self", *filter(None, [str(inspect.Signature(_bare(parameters)))[1:-1]])])


def _bare(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    return [parameter.replace(annotation=parameter.empty) for parameter in parameters]


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "guideway"
