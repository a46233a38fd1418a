"""Classes that violate the contract of their kind, also those written for an earlier contract, are refused with a
hint."""
# ruff: noqa: ARG005 - the tests are about parameters

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from guideway import api
from guideway.api import (
    AttentionBackend,
    GrammarStrategy,
    LogitModifier,
    LogitTransform,
    Matcher,
    Sampler,
    Stage,
    UnsupportedGrammar,
    WorkerMixin,
)
from guideway.devices.numpy.device import NumpyDevice, NumpyOps
from guideway.errors import ConformanceError, PluginLoadError
from guideway.plugins import PluginIndex, PluginRecord, moved
from guideway.plugins.building import build_device, build_modifiers
from guideway.plugins.contract import ContractViolation, check_class, check_returned
from guideway.plugins.kinds import KINDS
from guideway.plugins.loading import load


def record(kind: str, name: str = "mine") -> PluginRecord:
    return PluginRecord(kind, name, "mine", "mine", "1", "somewhere")


def refusal(kind: str, cls: type) -> str:
    with pytest.raises(ContractViolation) as caught:
        check_class(record(kind), cls)
    return str(caught.value)


class Transform(LogitTransform):
    def apply(self, logits: Any, payload: Any, step: Any) -> Any:
        return logits


class Draws(Sampler):
    def sample(self, logprobs: Any, payload: Any, step: Any) -> Any:
        return logprobs


class Modifier(LogitModifier[Any]):
    contract, name, stage, transform = "1.0", "mine", Stage.PRE_WARP, Transform

    def start(self, request: Any, sequence: Any, compiled: Any) -> Any:
        return None

    def prepare(self, batch: Any, states: Any) -> Any:
        return None


class Strategy(GrammarStrategy):
    contract, name, kinds = "1.0", "mine", frozenset({"regex"})

    def supports(self, constraint: Any) -> Any:
        return api.Support()

    def compile(self, constraint: Any) -> Any:
        raise UnsupportedGrammar("none", feature="regex")


class Device(NumpyDevice):
    contract, name = "1.0", "mine"


class Mixin(WorkerMixin):
    contract, name = "1.0", "mine"


class Attention(AttentionBackend):
    contract, name, layout = "1.0", "mine", "packed"

    def attend(
        self, query: Any, key: Any, value: Any, *, lengths: Any, scale: float, causal: bool, window: int | None
    ) -> Any:
        return query


CORRECT = {"modifier": Modifier, "grammar": Strategy, "device": Device, "worker": Mixin, "attention": Attention}


def written(kind: str, **attributes: Any) -> type:
    """Return a subclass of the correct class of a kind, with other attributes."""
    return type("Mine", (CORRECT[kind],), attributes)


# Versions


def test_the_bases_state_no_contract() -> None:
    for kind in KINDS.values():
        if kind.base:
            base = getattr(api, kind.base)
            assert not hasattr(base, "contract"), kind
            assert "contract" in base.__annotations__, kind


def test_a_class_without_a_contract_of_its_own_is_refused() -> None:
    class Silent(WorkerMixin):
        name = "mine"

    class OfOurs(NumpyDevice):
        name = "mine"

    for kind, cls in (("worker", Silent), ("device", OfOurs)):
        assert 'hint: write contract = "1.0" in the class, beside its name' in refusal(kind, cls)


def test_a_contract_that_another_plugins_class_states_counts() -> None:
    class Further(Mixin):
        pass

    check_class(record("worker"), Further)
    check_class(record("device", "numpy"), NumpyDevice)


def test_every_installed_component_is_what_its_contract_asks_for() -> None:
    for found in PluginIndex.scan().records:
        if found.distribution.startswith("guideway"):
            try:
                load(found)
            except PluginLoadError as error:
                assert "ContractViolation" not in str(error)  # a missing library or device is a different problem


# Signatures


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


FITTING = [
    ("modifier", "start", lambda self, request, sequence, compiled: None),
    ("modifier", "start", lambda self, asked, where, made: None),
    ("modifier", "start", lambda self, request, sequence, compiled, extra=None, *, more=1: None),
    ("modifier", "start", lambda self, *args: None),
    ("modifier", "start", lambda *args, **kwargs: None),
    ("modifier", "start", decorated(lambda self, request, sequence, compiled: None)),
    ("modifier", "release", staticmethod(lambda state: None)),
    ("modifier", "companions", functools.partialmethod(lambda self, what, request: (), "x")),
    ("modifier", "accept", min),  # from an extension module, without a signature
    ("grammar", "available", classmethod(lambda cls: None)),
    ("grammar", "available", staticmethod(lambda: None)),
    ("device", "__init__", lambda self, device="cpu": None),
    ("worker", "anything", lambda self, of, its, own: None),
    # arguments after a ``*`` in the contract are passed by name
    ("attention", "attend", lambda self, query, key, value, *, window, causal, scale, lengths: None),
    ("attention", "attend", lambda self, q, k, v, lengths, scale, causal, window: None),
    ("attention", "attend", lambda self, q, k, v, **options: None),
]


@pytest.mark.parametrize(("kind", "method", "function"), FITTING)
def test_a_method_that_takes_what_hosts_pass_is_fine(kind: str, method: str, function: Any) -> None:
    check_class(record(kind), written(kind, **{method: function}))


MISFITS = [
    (
        "modifier",
        "start",
        lambda self, request, sequence: None,
        "Mine.start(self, request, sequence) does not fit the contract's start(self, request, sequence, compiled): "
        "it does not accept compiled\nhint: write def start(self, request, sequence, compiled)",
    ),
    ("modifier", "start", lambda self, request, sequence, *, compiled: None, "it does not accept compiled"),
    ("modifier", "prepare", lambda self, batch, states, device: None, "it requires device, which no host passes"),
    ("modifier", "prepare", lambda self, batch, states, *, device: None, "it requires device, which no host passes"),
    (
        "modifier",
        "prepare",
        lambda self, states, batch: None,
        "hosts pass arguments by position, but 'states' is at the position of 'batch'",
    ),
    ("modifier", "release", (), "Mine.release must be a method"),
    ("grammar", "available", lambda cls: None, "Mine.available must be a classmethod"),
    ("grammar", "fill", lambda self, jobs: None, "it does not accept bitmask"),
    ("grammar", "__init__", lambda self, vocabulary: None, "it does not accept options"),
    ("grammar", "close", staticmethod(lambda how: None), "it requires how"),
    ("device", "download", lambda self: None, "Mine.download(self) does not fit the contract's download(self, arrays)"),
    ("worker", "before_step", lambda self: None, "it does not accept step"),
    (
        "attention",
        "attend",
        lambda self, query, key, value, *, lengths, causal: None,
        "it does not accept scale, window, which hosts pass by name",
    ),
    ("attention", "attend", lambda self, query, key, **options: None, "it does not accept value"),
    (
        "attention",
        "attend",
        lambda self, query, key, value, *, lengths, scale, causal, window, mask: None,
        "it requires mask, which no host passes",
    ),
    ("attention", "attend", lambda self, *args: None, "it does not accept lengths, scale, causal, window"),
]


@pytest.mark.parametrize(("kind", "method", "function", "said"), MISFITS)
def test_a_method_that_does_not_is_named(kind: str, method: str, function: Any, said: str) -> None:
    assert said in refusal(kind, written(kind, **{method: function}))


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (
            type("Old", (Transform,), {"apply": lambda self, logits, payload: logits}),
            "Old.apply(self, logits, payload)",
        ),
        (type("Old", (Draws,), {"sample": lambda self, logprobs: logprobs}), "sample(self, logprobs, payload, step)"),
    ],
)
def test_methods_of_a_transform_are_compared_too(transform: type, said: str) -> None:
    assert said in refusal("modifier", written("modifier", transform=transform))


def built_modifier(cls: type[Any]) -> Any:
    context: Any = None
    return build_modifiers([cls], context, {})[0]


def test_operations_of_a_device_are_compared_when_it_is_built() -> None:
    class Ops(NumpyOps):
        def topk(self, x: Any) -> Any: ...  # type: ignore[override]

    closed = []

    class Mine(Device):
        def __init__(self, device: str) -> None:
            super().__init__()
            self.device, self.ops = device, Ops() if device == "old" else NumpyOps()

        def close(self) -> None:
            closed.append(self.device)

    check_class(record("device"), Mine)
    build_device(Mine, "cpu")
    with pytest.raises(PluginLoadError) as caught:
        build_device(Mine, "old")
    assert "device.mine failed while it was built: ContractViolation: " in str(caught.value)
    assert "Ops.topk(self, x) does not fit the contract's topk(self, x, k): it does not accept k" in str(caught.value)
    assert closed == ["old"]


class OldMatcher(Matcher):
    accept = fill_bitmask = lambda self, *args: 0
    is_terminated = is_accepting = lambda self: False

    def rollback(self) -> None: ...  # type: ignore[override]


class Duck:
    """Has no base class, like a class of an extension module."""

    def accept(self, token_ids: Any) -> int:
        return 0


class OldDuck:
    def accept(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (OldMatcher, r"OldMatcher\.rollback\(self\) does not fit the contract's rollback\(self, num_tokens\)"),
        (OldDuck, r"OldDuck\.accept\(self\) does not fit"),
        (Duck, None),
    ],
)
def test_methods_of_what_a_strategy_returns_are_compared(cls: type, said: str | None) -> None:
    if said is None:
        check_returned(cls(), Matcher)
        return
    for _ in range(2):  # also from the cache
        with pytest.raises(ConformanceError, match=said):
            check_returned(cls(), Matcher)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    class Wrong(GrammarStrategy):
        name = "another"

        def compile(self) -> None: ...  # type: ignore[override]

    said = refusal("grammar", Wrong)
    for part in ("does not implement supports", "class variable kinds", "'another'", "set contract", "not accept"):
        assert part in said


# Names that moved


def test_what_an_earlier_contract_had_is_said_with_what_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    said = refusal("modifier", written("modifier", order=2))
    assert said.startswith(
        "Mine.order is no longer part of the contract\nhint: delete it: modifiers of one stage act in"
    )
    check_class(record("worker"), written("worker", order=2))
    monkeypatch.setattr(LogitModifier, "order", 0, raising=False)  # a name of the current contract is not a moved one
    check_class(record("modifier"), written("modifier", order=2))


def test_what_an_earlier_contract_had_is_found_where_init_sets_it() -> None:
    closed = []

    class Mine(Modifier):
        def __init__(self, options: Any, context: Any) -> None:
            super().__init__(options, context)
            self.order = 2

        def close(self) -> None:
            closed.append(self)

    check_class(record("modifier"), Mine)
    built_modifier(Modifier)
    with pytest.raises(PluginLoadError) as caught:
        built_modifier(Mine)
    assert "Mine.order is no longer part of the contract\nhint: delete it" in str(caught.value)
    assert len(closed) == 1


def test_a_key_of_nothing_is_refused() -> None:
    key, compiles = {"compile_key": lambda self, request: 1}, {"compile": lambda self, request, grammar: 2}
    said = refusal("modifier", written("modifier", **key))
    assert "Mine.compile_key does nothing without compile\nhint: implement compile(self, request, grammar)" in said
    for attributes in (compiles, key | compiles):
        check_class(record("modifier"), written("modifier", **attributes))


@pytest.mark.parametrize(("kind", "hint"), [("modifier", "Example(options={...})"), ("grammar", "GrammarExample(...)")])
def test_examples_that_are_no_sequence_are_refused(kind: str, hint: str) -> None:
    for given in ({"bias": 2}, api.Example({}), "text", {1}):
        said = refusal(kind, written(kind, examples=given))
        assert f"Mine.examples must be a sequence, not {type(given).__name__}\nhint: write examples = ({hint},)" in said


def test_examples_of_earlier_kinds_are_refused() -> None:
    new: dict[str, Any] = {
        "modifier": api.Example({"bias": 2}),
        "grammar": api.GrammarExample(api.Regex("a"), (b"a",)),
    }
    old = {"modifier": {"bias": 2}, "grammar": api.Example(api.Regex("a"))}  # type: ignore[arg-type]
    hints = {"modifier": "hint: write Example(options={...})", "grammar": "hint: write GrammarExample(...)"}
    for kind in new:
        check_class(record(kind), written(kind, examples=(new[kind],)))
        assert hints[kind] in refusal(kind, written(kind, examples=(new[kind], old[kind])))


OLD_NAMES = [
    ("from guideway.constraints import Runtime", "guideway.constraints is now guideway.runtime"),
    ("from guideway.builtin.torch_device import TorchDevice", "guideway.devices.torch.device"),
    ("import guideway.api.errors", "guideway.api.errors is now guideway.errors"),
    ("from guideway.conformance.registry import check", "the rest is guideway_conformance"),
    ("from guideway.conformance import check", "the rest is guideway_conformance"),
    ("from guideway.api import hookimpl\n@hookimpl\ndef guideway_commands(): ...", "group 'guideway.commands'"),
    ("from guideway.api.grammar import Example", "a strategy's is GrammarExample(constraint, accepted, rejected)"),
    *(
        (f"from guideway.api import Example, Regex\nExample({given})", "a strategy's is GrammarExample(constraint,")
        for given in ("constraint=Regex('a'), accepted=(b'a',)", "Regex('a'), accepted=(b'a',)")
    ),
]


@pytest.mark.parametrize(("line", "said"), OLD_NAMES)
def test_a_plugin_that_uses_a_name_that_moved_is_told_the_new_one(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"old_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(f"{line}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginLoadError) as caught:
        load(PluginRecord("worker", "old", name, "old", "1", str(tmp_path), requires=("guideway",)))
    hints = [text for text in str(caught.value).splitlines() if text.strip().startswith("hint: ")]
    assert any(said in hint for hint in hints), hints


def test_another_class_or_keyword_is_no_name_that_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"other_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text("from guideway.api import Example\nExample({}, anything=1)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginLoadError) as caught:
        load(PluginRecord("worker", "old", name, "old", "1", str(tmp_path), requires=("guideway",)))
    assert str(caught.value).count("hint: ") == 1  # the hint of every failure


def test_names_that_moved_are_not_there() -> None:
    for name in moved.NAMES:
        if name != "guideway.conformance":
            with pytest.raises((ImportError, AttributeError)):
                resolve_name(name)
