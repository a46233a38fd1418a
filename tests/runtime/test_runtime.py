"""The runtime through the fake host: several strategies, drafts, journal and replay, forks, overruling."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from guideway.api import (
    Array,
    Choice,
    CompiledGrammar,
    Constraint,
    FinishReason,
    InvalidGrammar,
    InvalidRequest,
    JsonSchema,
    LogitModifier,
    LogitTransform,
    Matcher,
    Payload,
    PluginError,
    Regex,
    Request,
    SamplingParams,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    Support,
    UnsupportedCapability,
    UnsupportedGrammar,
    ValidationContext,
)
from guideway.api.steps import GRAMMAR_MASK
from guideway.devices.numpy.device import NumpyDevice
from guideway.runtime import Journal
from guideway.runtime.constraints import candidates
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy
from guideway_llguidance.strategy import Strategy as LLGuidanceStrategy
from guideway_xgrammar.strategy import Strategy as XGrammarStrategy

from tests.support.fake_host import FakeHost
from tests.support.probes import Aligned, Gumbel
from tests.support.vocabularies import encode, tiny

VOCABULARY = tiny(width=128)
PROMPT = encode(VOCABULARY, b"the prompt")
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


class Bare(Matcher):
    """A matcher that can neither roll back nor fork."""

    def __init__(self, inner: Matcher) -> None:
        self.inner = inner

    def accept(self, token_ids: Sequence[int]) -> int:
        return self.inner.accept(token_ids)

    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        self.inner.fill_bitmask(bitmask, row)

    def is_terminated(self) -> bool:
        return self.inner.is_terminated()

    def is_accepting(self) -> bool:
        return self.inner.is_accepting()


class BareGrammar(CompiledGrammar):
    def __init__(self, inner: CompiledGrammar) -> None:
        self.inner = inner

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return Bare(self.inner.matcher(stop_token_ids))

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes


class BareStrategy(ReferenceStrategy):
    name, capabilities, max_rollback = "bare", frozenset(), 0

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        return BareGrammar(super().compile(constraint))


STRATEGIES = {
    "llguidance": LLGuidanceStrategy,
    "xgrammar": XGrammarStrategy,
    "reference": ReferenceStrategy,
    "bare": BareStrategy,
}


def host(*modifiers: Any, **options: Any) -> FakeHost:
    strategies = {name: cls(VOCABULARY, {}) for name, cls in STRATEGIES.items()}
    options = {"strategies": strategies, **options}
    return FakeHost(VOCABULARY, NumpyDevice("cpu"), modifiers=modifiers, **options)


def constraints() -> list[Constraint]:
    """Return one constraint for each strategy, and some twice."""
    return [
        *(JsonSchema(SCHEMA, strategy=name) for name in ("llguidance", "xgrammar")),
        *(Regex("[a-c]{4,9}(x|y|zz)", strategy=name) for name in STRATEGIES),
        *(Choice(["alpha", "beta", "gamma"], strategy=name) for name in STRATEGIES),
    ]


def params(*, temperature: float = 0.0) -> list[SamplingParams]:
    return [
        SamplingParams(max_tokens=60, temperature=temperature, seed=i, constraint=constraint)
        for i, constraint in enumerate(constraints())
    ]


def prompts() -> list[list[int]]:
    return [PROMPT + encode(VOCABULARY, str(i).encode()) for i in range(len(constraints()))]


def test_a_request_that_another_runtime_has_admitted_is_admitted_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first has decided is not decided again, with rewritten schemas and losses."""
    defaults: Any = {"whitespace": "compact", "on_unenforced": "check"}
    first, second = host(**defaults).runtime, host(**defaults).runtime
    weaker = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "allOf": [{"maxItems": 3}]}
    more = [JsonSchema(json.dumps(SCHEMA)), JsonSchema(weaker), JsonSchema(SCHEMA, properties_order="any")]
    for i, wanted in enumerate([*params(), *(SamplingParams(constraint=each, seed=1) for each in more)]):
        request = Request(request_id=str(i), prompt_token_ids=tuple(PROMPT), params=wanted)
        admitted = first.admit(request)
        with monkeypatch.context() as patch:
            patch.setattr(candidates, "choose", None)
            found = second.admit(request, verdict=first.verdict(admitted))
        assert found.request == admitted.request
        compiled = [each.compilation.result(30)[GRAMMAR_MASK] for each in (admitted, found) if each.compilation]
        one, other = (replace(each.candidate, strategy=None, home=None) for each in compiled)
        assert one == other
        assert second.verdict(found) == first.verdict(admitted)
    for runtime in (first, second):
        runtime.close()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_different_strategies_share_a_batch_and_drafts_change_nothing(temperature: float) -> None:
    plain = host().generate(prompts(), params(temperature=temperature))
    for constraint, result in zip(constraints(), plain, strict=True):
        assert result.strategy == constraint.strategy
        assert (result.finish_reason, result.error) == (FinishReason.STOP, None)
        check(constraint, result.text)
    drafted = host(num_drafts=3).generate(prompts(), params(temperature=temperature))
    assert [r.token_ids for r in drafted] == [r.token_ids for r in plain]


def check(constraint: Constraint, text: str) -> None:
    if isinstance(constraint, JsonSchema):
        value = json.loads(text)
        assert list(value) == ["a", "b"]
        assert value["a"] in ("x", "yy")
        assert value["b"] in (True, False)
    elif isinstance(constraint, Choice):
        assert text in constraint.choices
    else:
        assert text.strip("abc") in ("x", "y", "zz")


def test_the_same_text_comes_from_strategies_that_agree() -> None:
    subject = host()
    wanted = [SamplingParams(max_tokens=60, constraint=Regex("[a-c]{4,9}(x|y|zz)", strategy=s)) for s in STRATEGIES]
    texts = {result.token_ids for result in subject.generate([PROMPT] * len(wanted), wanted)}
    assert len(texts) == 1


def test_masks_grow_with_the_batch_and_a_payload_holds_until_the_second_after() -> None:
    subject = host()

    for slot in range(4):
        wanted = SamplingParams(constraint=Choice([f"{slot}", "x"]))
        subject.join(slot, Request(request_id=f"{slot}", prompt_token_ids=tuple(PROMPT), params=wanted))

    def bitmask(slots: list[int]) -> Any:
        batch = StepBatch.build(slots, [len(PROMPT)] * len(slots), [[] for _ in slots])
        return subject.runtime.prepare(batch).payloads["grammar"].arrays["bitmask"]

    assert [len(buffer) for buffer in subject.runtime._mask.mask_rows._buffers] == [2, 2], "guards"
    (first,) = bitmask([0]).copy()
    three = bitmask([0, 1, 2])
    rows = three.copy()
    assert len({row.tobytes() for row in rows}) == 3
    np.testing.assert_array_equal(rows[0], first)
    four = bitmask([0, 1, 2, 3])
    np.testing.assert_array_equal(three, rows)
    np.testing.assert_array_equal(bitmask([2, 1]), rows[[2, 1]])
    np.testing.assert_array_equal(four[:3], rows)


class Rebuilding(FakeHost):
    """Loses every state at every step, and rebuilds it from the journal."""

    def step(self) -> None:
        super().step()
        for slot in self.tokens:
            self.runtime.rebuild(slot)


def test_states_rebuilt_from_the_journal_change_nothing() -> None:
    def run(cls: type[FakeHost]) -> list[tuple[int, ...]]:
        strategies = {name: s(VOCABULARY, {}) for name, s in STRATEGIES.items()}
        subject = cls(VOCABULARY, NumpyDevice("cpu"), strategies=strategies, modifiers=[Gumbel, Aligned], num_drafts=2)
        wanted = [
            SamplingParams(
                max_tokens=60, temperature=1.0, seed=i, constraint=c, modifiers={"gumbel": {}, "aligned": {}}
            )
            for i, c in enumerate(constraints())
        ]
        return [result.token_ids for result in subject.generate(prompts(), wanted)]

    assert run(Rebuilding) == run(FakeHost)


def test_a_sequence_goes_on_elsewhere_from_its_pickled_journal() -> None:
    first, second = host(), host()
    request = Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=params()[0])
    (whole,) = host().generate([PROMPT], params()[:1])
    first.join(3, request)
    for _ in range(4):
        first.step()
    journal: Journal = pickle.loads(pickle.dumps(first.runtime.journal(3)))
    second.join(5, request)
    second.runtime.release(5)
    admission = second.runtime.admit(request)
    second.runtime.start(admission, 5, journal=journal)
    second.tokens[5] = [*PROMPT, *journal.token_ids]
    while second.tokens:
        second.step()
    assert second.results[5].token_ids == whole.token_ids


def test_a_fork_shares_the_past_and_nothing_else() -> None:
    subject = host()
    wanted = SamplingParams(max_tokens=60, temperature=2.0, seed=4, constraint=Regex("[a-c]{9}x", strategy="bare"))
    subject.join(0, Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=wanted))
    for _ in range(3):
        subject.step()
    subject.runtime.fork(0, 1, index=1)
    shared = list(subject.tokens[0])
    subject.tokens[1], subject.limits[1], subject.companions[1] = list(shared), subject.limits[0], ()
    while subject.tokens:
        subject.step()
    one, two = subject.results[0], subject.results[1]
    assert one.token_ids[: len(shared) - len(PROMPT)] == two.token_ids[: len(shared) - len(PROMPT)]
    assert one.token_ids != two.token_ids  # another index, so other random numbers
    assert len(one.text) == len(two.text) == 10


class NoFork(Gumbel):
    name, derived = "no_fork", False


def test_a_modifier_that_cannot_fork_refuses_and_nothing_changes() -> None:
    subject = host(NoFork)
    wanted = SamplingParams(max_tokens=8, temperature=1.0, modifiers={"no_fork": {}})
    subject.join(0, Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=wanted))
    with pytest.raises(UnsupportedCapability, match="no_fork"):
        subject.runtime.fork(0, 1, index=1)
    while subject.tokens:
        subject.step()
    assert len(subject.results[0].token_ids) > 0


def test_forced_tokens_and_validation_ask_the_grammar() -> None:
    subject = host()
    wanted = SamplingParams(max_tokens=60, constraint=Regex("abcabc[xy]", strategy="reference"))
    subject.join(0, Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=wanted))
    legal, illegal = encode(VOCABULARY, b"abcabcx"), encode(VOCABULARY, b"abcabq")
    assert subject.runtime.validate(0, legal) == len(legal)
    assert subject.runtime.validate(0, illegal) == len(illegal) - 1
    assert len(subject.runtime.forced({0: 2})[0]) <= 2


class BanTransform(LogitTransform):
    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return step.ops.where_rows(logits, payload.rows, True, -np.inf)


class BanAll(LogitModifier[bool]):
    """Forbids every token."""

    name, stage, transform, derived = "ban_all", Stage.PRE_WARP, BanTransform, True

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> bool | None:
        return True if self.name in request.params.modifiers else None

    def prepare(self, batch: StepBatch, states: Sequence[bool | None]) -> Payload | None:
        return Payload(batch.select(states)[0])


def test_where_nothing_is_left_the_grammar_wins_and_it_is_recorded() -> None:
    constraint = Choice(["alpha", "beta"], strategy="reference")
    wanted = [SamplingParams(max_tokens=20, constraint=constraint, modifiers=m) for m in ({"ban_all": {}}, {})]
    banned, plain = host(BanAll).generate([PROMPT, PROMPT], wanted)
    assert banned.token_ids == plain.token_ids
    assert banned.unenforced == ("modifier.ban_all",)
    assert plain.unenforced == ()


def test_two_owners_of_the_draw_are_refused() -> None:
    class Second(Gumbel):
        name = "second"

    wanted = SamplingParams(max_tokens=4, modifiers={"gumbel": {}, "second": {}})
    (result,) = host(Gumbel, Second).generate([PROMPT], [wanted])
    assert result.finish_reason is FinishReason.REFUSED
    assert "'gumbel' and 'second' both own the draw" in str(result.error)


class Partial(ReferenceStrategy):
    """Leaves one keyword unenforced."""

    name = "partial"

    def supports(self, constraint: Constraint) -> Support:
        return Support(enforced=frozenset({"type"}), unenforced=frozenset({"enum"}))


class Fussy(ReferenceStrategy):
    """Supports the constraint, but raises when compiling it."""

    name = "fussy"

    def supports(self, constraint: Constraint) -> Support:
        return Support(enforced=frozenset({"enum"}))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        raise UnsupportedGrammar("enum is too much", feature="enum")


class Refusing(ReferenceStrategy):
    name = "refusing"

    def supports(self, constraint: Constraint) -> Support:
        return Support(reason="no enum here")


class Broken(ReferenceStrategy):
    name = "broken"

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        raise KeyError("oops")


def first(names: Sequence[str], constraint: Constraint) -> Any:
    classes = {cls.name: cls for cls in (Partial, Fussy, Refusing, Broken, ReferenceStrategy)}
    subject = host(strategies={name: classes[name](VOCABULARY, {}) for name in names})
    (result,) = subject.generate([PROMPT], [SamplingParams(max_tokens=20, constraint=constraint)])
    return result


@pytest.mark.parametrize(
    ("names", "strategy", "unenforced"),
    [
        (["partial", "reference"], "reference", ()),
        (["reference", "partial"], "reference", ()),
        (["refusing", "partial"], "partial", ("enum",)),
        (["partial", "refusing"], "partial", ("enum",)),
        (["fussy", "reference"], "reference", ()),
        (["fussy", "partial"], "partial", ("enum",)),
        (["partial"], "partial", ("enum",)),
    ],
)
def test_the_first_strategy_that_enforces_everything_serves(
    names: list[str], strategy: str, unenforced: tuple[str, ...]
) -> None:
    result = first(names, JsonSchema({"type": "string", "enum": ["aa", "bb"]}))
    assert (result.strategy, result.unenforced, result.finish_reason) == (strategy, unenforced, FinishReason.STOP)


def test_a_named_strategy_is_the_only_one_tried() -> None:
    result = first(["reference", "partial"], JsonSchema({"type": "string", "enum": ["aa", "bb"]}, strategy="partial"))
    assert (result.strategy, result.unenforced) == ("partial", ("enum",))
    result = first(["reference", "refusing"], JsonSchema({"type": "string", "enum": ["aa", "bb"]}, strategy="refusing"))
    assert isinstance(result.error, UnsupportedGrammar)
    assert "no enum here" in str(result.error)


def test_a_misspelt_keyword_is_named_whoever_serves() -> None:
    wanted = SamplingParams(max_tokens=20, constraint=JsonSchema({"enum": ["aa", "bb"], "maxLenght": 2}))
    (result,) = host().generate([PROMPT], [wanted])
    assert (result.strategy, result.unenforced) == ("llguidance", ("maxLenght",))


def test_after_an_error_no_other_strategy_is_tried() -> None:
    result = first(["broken", "reference"], JsonSchema({"enum": ["aa", "bb"]}))
    assert result.finish_reason is FinishReason.INTERNAL_ERROR
    assert isinstance(result.error, PluginError)
    assert str(result.error).startswith("grammar.broken failed in compile: KeyError")


def test_no_strategy_is_a_refusal_that_lists_reasons() -> None:
    result = first(["refusing", "fussy"], Regex("(?=lookahead)"))
    assert result.finish_reason is FinishReason.REFUSED
    result = first([], JsonSchema({"enum": ["aa"]}))
    assert "no grammar strategy is configured" in str(result.error)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -3}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": 1e-9}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"stop_token_ids": (9999,)}, "stop_token_ids"),
        ({"stop_token_ids": "ab"}, "stop_token_ids"),
        ({"modifiers": {"nope": {}}}, "modifiers"),
        ({"constraint": "a string"}, "constraint"),
        ({"constraint": Regex("a", strategy="nope")}, "constraint.strategy"),
        ({"constraint": JsonSchema("{")}, "constraint"),
        ({"constraint": JsonSchema({"type": "strnig"})}, "constraint.schema"),
        ({"constraint": Choice([])}, "constraint.choices"),
        ({"constraint": Regex("(")}, "constraint"),
    ],
)
def test_a_bad_request_names_its_field_and_costs_nobody(change: dict[str, Any], field: str) -> None:
    good = SamplingParams(max_tokens=6)
    (alone,) = host().generate([PROMPT], [good])
    before, refused, after = host().generate([PROMPT] * 3, [good, SamplingParams(**{"max_tokens": 6, **change}), good])
    assert refused.finish_reason is FinishReason.REFUSED
    assert isinstance(refused.error, InvalidRequest)
    assert refused.error.field == field
    assert before.token_ids == after.token_ids == alone.token_ids


@pytest.mark.parametrize("prompt", [[], [9999], [-1], list(range(50)) * 6])
def test_a_bad_prompt_is_refused(prompt: list[int]) -> None:
    (result,) = host().generate([prompt], [SamplingParams()])
    assert isinstance(result.error, InvalidRequest)
    assert result.error.field == "prompt"


def test_an_id_in_use_is_refused_until_its_request_is_over() -> None:
    subject = host()
    request = Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=SamplingParams(max_tokens=2))
    subject.join(0, request)
    with pytest.raises(InvalidRequest, match="already running"):
        subject.runtime.admit(request)
    while subject.tokens:
        subject.step()
    subject.runtime.abandon(subject.runtime.admit(request))
    subject.runtime.abandon(subject.runtime.admit(request))


def test_validators_pass_refuse_or_fail_closed() -> None:
    seen = []

    def strict(request: Request, context: ValidationContext) -> None:
        seen.append((request.request_id, context.max_model_len, context.grammars))
        if request.params.max_tokens == 7:
            raise InvalidRequest("seven is out of fashion", field="max_tokens")
        if request.params.max_tokens == 8:
            raise ZeroDivisionError("oops")

    subject = host(validators={Request: [("dist/hooks.strict", strict)]})
    good, refused, broken = subject.generate([PROMPT] * 3, [SamplingParams(max_tokens=n) for n in (6, 7, 8)])
    assert seen == [(str(i), 256, tuple(STRATEGIES)) for i in range(3)]
    assert good.error is None
    assert str(refused.error) == "seven is out of fashion"
    assert isinstance(broken.error, InvalidRequest)
    assert "dist/hooks.strict" in str(broken.error)


def test_a_seed_makes_draws_repeatable_and_none_draws_one() -> None:
    def draw(seed: int | None) -> tuple[int, ...]:
        (result,) = host().generate([PROMPT], [SamplingParams(max_tokens=12, temperature=1.0, seed=seed)])
        return result.token_ids

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)
    assert draw(None) != draw(None)


def test_an_empty_language_is_invalid() -> None:
    result = first(["reference"], JsonSchema({"allOf": [{"type": "string"}, {"type": "integer"}]}))
    assert isinstance(result.error, InvalidGrammar | UnsupportedGrammar)
