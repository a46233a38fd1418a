"""Bans through vLLM's parameters, in addition to a constraint: the output is complete and avoids them, or `unenforced`
has the parameter. vLLM's own code decides whether a token was banned."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jsonschema
import pytest

from tests.support.stages import one_in
from tests.vllm.probes_in_vllm import check_nothing_left, core_of, params

GUIDEWAY = {"grammar": ["llguidance", "xgrammar"]}
DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
SMALL = {
    "max_model_len": 96,
    "max_num_seqs": 4,
    "block_size": 32,
    "num_gpu_blocks_override": 4,
    "disable_log_stats": False,
}
"""Too little room for all requests, so that some are preempted."""
PROMPT = "Describe what you see."
NAMES = {
    "type": "object",
    "properties": {"names": {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}},
    "required": ["names"],
    "additionalProperties": False,
}
DRAWN = {"temperature": 2.0, "seed": 5, "max_tokens": 24, "json": NAMES}
ENDLESS = {"temperature": 1.5, "seed": 3, "max_tokens": 16, "regex": "[a-z ]{2,400}(1|2)"}
"""Closing completes it, and has to choose between two ends."""
REPEATED = "(no, never again, not (once|twice)! ){3}"
PUNCTUATION = '{}[]",: '


def tokens(llm: Any) -> Sequence[bytes]:
    """Return the bytes of each token."""
    return core_of(llm).runtime.context.vocabulary.tokens


def spelt(llm: Any, *texts: str) -> list[int]:
    """Return the tokens with these texts."""
    return [i for i, token in enumerate(tokens(llm)) if token in [text.encode() for text in texts]]


def of_characters(llm: Any, characters: str) -> list[int]:
    """Return the tokens that have only these characters."""
    return [i for i, token in enumerate(tokens(llm)) if token and set(token) <= set(characters.encode())]


def ask(llm: Any, *wanted: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Return all outputs, each with the report of its request."""
    found = llm.generate([PROMPT] * len(wanted), list(wanted), use_tqdm=False)
    told = [(output.kv_transfer_params or {}).get("guideway", {}) for output in found]
    return [(one, said) for output, said in zip(found, told, strict=True) for one in output.outputs]


def banned_tokens(llm: Any, wanted: Any, token_ids: Sequence[int]) -> list[int]:
    """Return the tokens of an output that vLLM would not have drawn at their positions, with these parameters and
    without a constraint. A bias of -100 counts as a ban."""
    import torch
    from vllm.v1.sample.ops.bad_words import apply_bad_words

    stops = core_of(llm).runtime.context.vocabulary.stop_token_ids
    wanted.update_from_tokenizer(llm.get_tokenizer())
    found = []
    for place, token_id in enumerate(token_ids):
        row = torch.zeros(1, len(tokens(llm)))
        if wanted.allowed_token_ids is not None:
            keep = row[0, wanted.allowed_token_ids].clone()
            row[:] = -math.inf
            row[0, wanted.allowed_token_ids] = keep
        apply_bad_words(row, {0: wanted.bad_words_token_ids or []}, [list(token_ids[:place])])
        for biased, value in (wanted.logit_bias or {}).items():
            row[0, biased] += value
        if place < wanted.min_tokens:
            row[0, list(stops)] = -math.inf
        if row[0, token_id] <= -100:
            found.append(token_id)
    return found


BESIDE: dict[str, tuple[Callable[[Any], dict[str, Any]], tuple[str, ...]]] = {
    "a biased token that is not needed": (lambda llm: {"logit_bias": dict.fromkeys(spelt(llm, '"]'), -100.0)}, ()),
    "a biased token that is needed": (
        lambda llm: {"logit_bias": dict.fromkeys(spelt(llm, "}"), -100.0)},
        ("logit_bias",),
    ),
    "a banned token that is needed": (
        lambda llm: {"logit_bias": dict.fromkeys(spelt(llm, "}"), -math.inf)},
        ("logit_bias",),
    ),
    "a token with all the weight": (lambda llm: {"logit_bias": dict.fromkeys(spelt(llm, "a"), 100.0)}, ()),
    "allowed tokens that are enough": (
        lambda llm: {"allowed_token_ids": [*of_characters(llm, PUNCTUATION + "names"), 2]},
        (),
    ),
    "allowed tokens that are not": (
        lambda llm: {"allowed_token_ids": of_characters(llm, "0123")},
        ("allowed_token_ids",),
    ),
    "allowed tokens without a stop token": (
        lambda llm: {"allowed_token_ids": of_characters(llm, PUNCTUATION + "names")},
        ("allowed_token_ids",),
    ),
    "a bad word that is not needed": (lambda _: {"bad_words": ['"]']}, ()),
    "a bad word that is needed": (lambda _: {"bad_words": ["}"]}, ("bad_words",)),
    "a bad word of several tokens": (lambda _: {"bad_words": ["photographer", "]}"]}, ()),
    "a minimum that is met": (lambda _: {"min_tokens": 10}, ()),
    "a minimum there is no room for": (lambda _: {"min_tokens": 24}, ("min_tokens",)),
    "a stop string": (lambda _: {"stop": ['"a"']}, ()),
    "several outputs": (lambda llm: {"n": 2, "logit_bias": dict.fromkeys(spelt(llm, '"]'), -100.0)}, ()),
    "penalties and filters": (lambda _: {"repetition_penalty": 1.3, "presence_penalty": 1.0, "top_k": 3}, ()),
    "all at once": (
        lambda llm: {
            "min_tokens": 12,
            "bad_words": ["]}", "photographer"],
            "logit_bias": dict.fromkeys(spelt(llm, "n", "x"), -100.0),
            "allowed_token_ids": [*of_characters(llm, PUNCTUATION + "namesx"), 2],
        },
        (),
    ),
}


@pytest.mark.parametrize("host", one_in(2, ["process", "inline"]))
@pytest.mark.parametrize("beside", BESIDE)
def test_beside_other_parameters_an_answer_is_closed(start: Callable[..., Any], host: str, beside: str) -> None:
    llm = start(GUIDEWAY | {"grammar_host": host})
    given, unenforced = BESIDE[beside]
    wanted = params(**DRAWN, **given(llm))
    for output, told in ask(llm, wanted):
        assert output.finish_reason == "stop"
        assert tuple(told.get("unenforced", ())) == unenforced, output.text
        assert told["closed_early"], "the test is of closing"
        jsonschema.validate(json.loads(output.text), NAMES)
        assert bool(banned_tokens(llm, wanted, output.token_ids)) == bool(unenforced), output.text
    check_nothing_left(llm)


WAYS: dict[str, Callable[[Any, str], dict[str, Any]]] = {
    "logit_bias": lambda llm, text: {"logit_bias": dict.fromkeys(spelt(llm, text), -100.0)},
    "bad_words": lambda _, text: {"bad_words": [text]},
    "allowed_token_ids": lambda llm, text: {
        "allowed_token_ids": [*of_characters(llm, "abcdefgh 12".replace(text, "")), 2]
    },
    "stop": lambda _, text: {"stop": [text]},
}


@pytest.mark.parametrize("text", ["1", "2"])
@pytest.mark.parametrize("way", WAYS)
def test_a_completion_does_without_what_is_banned(start: Callable[..., Any], way: str, text: str) -> None:
    llm = start(GUIDEWAY)
    wanted = params(**ENDLESS, **WAYS[way](llm, text))
    ((output, told),) = ask(llm, wanted)
    assert (output.finish_reason, output.stop_reason) == ("stop", None)
    assert output.text.endswith({"1": "2", "2": "1"}[text])
    assert told.get("unenforced") is None
    assert told["closed_early"]


def test_a_word_of_several_tokens_is_banned_as_the_tokenizer_cuts_it(start: Callable[..., Any]) -> None:
    """Without these words the output has to be spelled differently, because the grammar allows no other text. Masks
    look one token ahead, so if most of the text is banned, there may be no other spelling left."""
    llm, text = start(GUIDEWAY), "no, never again, not once! " * 2
    tokenizer = llm.get_tokenizer()
    ((free, _),) = ask(llm, params(regex=text, max_tokens=60))
    drawn = list(free.token_ids)
    parts = [drawn[i : i + n] for n in (2, 3) for i in range(len(drawn) - n)]
    words = [word for part in parts if (word := tokenizer.decode(part)) == word.strip()]
    words = [word for word in words if tokenizer.encode(word, add_special_tokens=False) in parts]
    assert len(set(words)) > 2
    for some in ([words[0]], [words[-1]], words):
        wanted = params(regex=text, max_tokens=60, bad_words=some)
        ((output, told),) = ask(llm, wanted)
        assert output.text == free.text == text
        assert told.get("unenforced") == (None if len(some) == 1 else ["bad_words"])
        assert bool(banned_tokens(llm, wanted, output.token_ids)) == (len(some) > 1)
        assert banned_tokens(llm, wanted, drawn) != []


def test_a_minimum_beyond_the_end_of_a_grammar_is_named(start: Callable[..., Any]) -> None:
    llm = start(GUIDEWAY)
    beyond, within = params(choice=["yes", "no"], min_tokens=10), params(regex="[a-z]{1,60}", min_tokens=6)
    (first, told), (second, said) = ask(llm, beyond, within)
    assert (first.text in ("yes", "no"), first.finish_reason, told.get("unenforced")) == (True, "stop", ["min_tokens"])
    assert (len(second.token_ids) > 6, second.finish_reason, said.get("unenforced")) == (True, "stop", None)


def test_a_bias_that_leaves_nothing_to_draw_from_is_refused(start: Callable[..., Any]) -> None:
    from vllm.exceptions import VLLMValidationError

    llm = start(GUIDEWAY)
    for value in (math.nan, math.inf):
        with pytest.raises(VLLMValidationError, match="logit_bias of token 71") as refused:
            ask(llm, params(choice=["yes"], logit_bias={71: value}))
        assert refused.value.parameter == "logit_bias"
    check_nothing_left(llm)


def unconstrained(llm: Any) -> list[Any]:
    """Return requests without a constraint that ban something."""
    common = {"temperature": 1.2, "logprobs": 3, "max_tokens": 12}
    return [
        params(**common, seed=1, min_tokens=12, bad_words=["e", "a e"]),
        params(**common, seed=2, logit_bias={71: 100.0, 75: -100.0, 80: -math.inf}),
        params(**common, seed=3, allowed_token_ids=list(range(60, 120))),
    ]


def test_without_a_constraint_all_is_as_in_stock(start: Callable[..., Any]) -> None:
    """Tokens and log-probabilities are equal bit by bit, in a batch with a constrained request."""
    llm = start(None)
    expected = [one for one, _ in ask(llm, *unconstrained(llm), params(max_tokens=4))][:-1]
    llm = start(GUIDEWAY)
    constrained = params(choice=["yes"], min_tokens=3, max_tokens=4, bad_words=["y"])
    found = [one for one, _ in ask(llm, *unconstrained(llm), constrained)][:-1]
    for one, other in zip(found, expected, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == other.logprobs


def test_beside_a_modifier_alone_the_bans_are_vllms(start: Callable[..., Any]) -> None:
    llm = start(GUIDEWAY | {"modifiers": ["hello"]})
    hello = {"hello": {"letter": "s"}}
    wanted = [
        params(hello, bad_words=["a", "e", "o"], min_tokens=24),
        params(hello, allowed_token_ids=of_characters(llm, "xyz")),
    ]
    for (output, told), one in zip(ask(llm, *wanted), wanted, strict=True):
        assert len(output.token_ids) == 24
        assert banned_tokens(llm, one, output.token_ids) == []
        assert told == {}


def greedy(llm: Any) -> list[Any]:
    """Return requests whose outputs repeat themselves, so that some n-gram drafts are right."""
    common = {"max_tokens": 40, "regex": REPEATED, "temperature": 0}
    return [
        params(**common, bad_words=["once"]),
        params(**common, bad_words=["never again", "twice"]),
        params(**common, min_tokens=40),
        params(**common, allowed_token_ids=[*of_characters(llm, "abcdefghijklmnopqrstuvwxyz ,!()"), 2]),
        params(temperature=0, max_tokens=30, regex="[a-z ]{2,400}(1|2)", bad_words=["1"]),
        params(temperature=0, max_tokens=30, json=NAMES, bad_words=["}"]),
        params(temperature=0, max_tokens=30, json=NAMES, allowed_token_ids=of_characters(llm, PUNCTUATION + "names")),
    ]


@pytest.fixture(scope="module")
def alone(start: Callable[..., Any]) -> list[Any]:
    """Tokens of the greedy requests, each run alone with room for everything, and their unenforced parts."""
    llm = start(GUIDEWAY)
    found = [ask(llm, wanted)[0] for wanted in greedy(llm)]
    for wanted, (output, told) in zip(greedy(llm), found, strict=True):
        named = set(told.get("unenforced", ())) - {"closing"}
        assert bool(banned_tokens(llm, wanted, output.token_ids)) == bool(named)
    return [(list(output.token_ids), told) for output, told in found]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "counter"),
    [({"speculative_config": DRAFTS}, "spec_decode_num_accepted_tokens"), (SMALL, "num_preemptions")],
    ids=["drafts", "preemption"],
)
def test_drafts_and_preemption_change_nothing(
    start: Callable[..., Any], alone: list[Any], options: dict[str, Any], counter: str
) -> None:
    llm = start(GUIDEWAY, **{"disable_log_stats": False, **options})
    found = [(list(output.token_ids), told) for output, told in ask(llm, *greedy(llm))]
    assert found == alone
    assert sum(metric.value for metric in llm.get_metrics() if metric.name == f"vllm:{counter}") > 0
    assert any(re.search("unenforced", str(told)) for _, told in alone)
    check_nothing_left(llm)


def test_a_late_modifier_draws_beside_bans(start: Callable[..., Any]) -> None:
    """guideway draws then, and vLLM's own draw after it must not change the token."""
    llm = start(GUIDEWAY | {"modifiers": ["hello"]})
    wanted = params(
        {"hello": {"letter": "s"}}, **DRAWN, logit_bias=dict.fromkeys(spelt(llm, "}"), -math.inf), min_tokens=3
    )
    ((output, told),) = ask(llm, wanted)
    assert (output.finish_reason, told["unenforced"]) == ("stop", ["logit_bias"])
    jsonschema.validate(json.loads(output.text), NAMES)
