"""The end marker of the reasoning, compared with brute-force search and spelling."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from guideway import ReasoningConfig
from guideway.api import Vocabulary
from guideway.errors import InvalidConfiguration
from guideway.runtime.constraints.reasoning import EndMarker
from guideway.vocabulary import build_vocabulary
from guideway_conformance.grammar.vocabularies import GreedyEncoder
from transformers import PreTrainedTokenizerBase

from tests.support.vocabularies import tiny
from tests.vocabulary.tokenizers_under_test import byte_level_with_added_tokens, demo, llama2

TOKENS = [b"a", b"b", b"ab", b"ba", b"bab", b"aab", b"abba", b"bb", b" ", b"", b""]
THINK, STOP = len(TOKENS) - 2, len(TOKENS) - 1
VOCABULARY = Vocabulary(
    TOKENS, frozenset({STOP}), {THINK: "</think>", STOP: "</s>"}, encoder=GreedyEncoder(tuple(TOKENS))
)
TEXTS = ["a", "ab", "aab", "abab", "abba", "aabaa", "babab"]


def walk(marker: EndMarker, token_ids: Sequence[int]) -> tuple[int, int] | None:
    """Return the number of tokens up to the end of the marker, and the parts of the last token after it."""
    matched = 0
    for count, token_id in enumerate(token_ids, 1):
        matched, beyond = marker.advance(matched, token_id)
        if marker.is_whole(matched):
            return count, beyond
    return None


def state(marker: EndMarker, token_ids: Sequence[int]) -> int:
    matched = 0
    for token_id in token_ids:
        matched, _ = marker.advance(matched, token_id)
    return matched


def outputs(seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(len(TOKENS) - 1) for _ in range(rng.randrange(12))]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_found_however_it_is_cut(text: str) -> None:
    marker = EndMarker(ReasoningConfig(end_str=text), VOCABULARY)
    for seed in range(400):
        output = outputs(seed)
        whole = VOCABULARY.decode(output)
        expected = None
        if (start := whole.find(text.encode())) >= 0:
            end = start + len(text)
            count = next(n for n in range(len(output) + 1) if len(VOCABULARY.decode(output[:n])) >= end)
            expected = count, len(VOCABULARY.decode(output[:count])) - end
        assert walk(marker, output) == expected, output


@pytest.mark.parametrize("text", TEXTS)
def test_from_wherever_an_output_stands_the_marker_can_be_brought_to_its_end(text: str) -> None:
    """The completion ends exactly at the marker's end, even for markers that overlap themselves."""
    marker = EndMarker(ReasoningConfig(end_str=text), VOCABULARY)
    for seed in range(400):
        output = outputs(seed)
        if walk(marker, output) is None:
            ending = marker.endings[state(marker, output)]
            assert walk(marker, [*output, *ending]) == (len(output) + len(ending), 0), output
            assert len(ending) <= marker.longest


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_that_straddle_its_end_are_known(text: str) -> None:
    marker = EndMarker(ReasoningConfig(end_str=text), VOCABULARY)
    for seed in range(100):
        output = outputs(seed)
        if walk(marker, output) is None:
            straddling = [i for i in range(len(TOKENS)) if (walk(marker, [*output, i]) or (0, 0))[1]]
            assert marker.straddling(state(marker, output)) == straddling


def test_token_ids_are_these_tokens_and_not_their_text() -> None:
    marker = EndMarker(ReasoningConfig(end_token_ids=(0, 1, 0, 2)), VOCABULARY)
    for seed in range(400):
        output = [token_id % 3 for token_id in outputs(seed)]
        found = [n for n in range(4, len(output) + 1) if output[n - 4 : n] == [0, 1, 0, 2]]
        assert walk(marker, output) == ((found[0], 0) if found else None)
        if not found:
            assert walk(marker, [*output, *marker.endings[state(marker, output)]]) is not None
    assert marker.straddling(3) == []


def test_the_name_of_a_special_token_is_that_token() -> None:
    marker = EndMarker(ReasoningConfig(end_str="</think>"), VOCABULARY)
    assert marker.endings == ((THINK,),)
    assert walk(marker, [0, THINK, 1]) == (2, 0)


def test_the_marker_is_spelled_as_the_model_knows_it_unless_fewer_tokens_are_left() -> None:
    marker = EndMarker(ReasoningConfig(end_str="abba"), VOCABULARY)
    whole = TOKENS.index(b"abba")
    assert marker.endings == ((whole,), (whole,), (whole,), (0,))


@pytest.mark.parametrize("text", ["</think>", "<think>", "[/THINK]\n\n", "東 Answer:"])
@pytest.mark.parametrize("tokenizer", [demo, byte_level_with_added_tokens, llama2], ids=lambda make: make.__name__)
def test_real_tokenizers_spell_it_and_are_read(tokenizer: Callable[[], PreTrainedTokenizerBase], text: str) -> None:
    """The marker may follow any prefix of itself, and other text may follow."""
    vocabulary = build_vocabulary(tokenizer())
    marker = EndMarker(ReasoningConfig(end_str=text), vocabulary)
    for length in range(len(text)):
        begun = vocabulary.encode(f"so, a < b {text[:length]}".encode())
        assert begun is not None
        ending = marker.endings[state(marker, begun)]
        assert walk(marker, [*begun, *ending]) == (len(begun) + len(ending), 0)
        assert vocabulary.decode([*begun, *ending]).count(text.encode()) == 1
        assert len(ending) <= marker.longest
    whole = vocabulary.encode(f"so {text}{{}}".encode())
    assert whole is not None
    found = walk(marker, whole)
    assert found is not None
    count, beyond = found
    assert vocabulary.decode(whole[:count])[: -beyond or None].endswith(text.encode())
    assert (whole[count - 1] in marker.straddling(state(marker, whole[: count - 1]))) is (beyond > 0)


def test_an_added_token_is_the_spelling_the_model_knows() -> None:
    vocabulary = build_vocabulary(byte_level_with_added_tokens())
    marker = EndMarker(ReasoningConfig(end_str="<think>"), vocabulary)
    ((token_id,), *_) = marker.endings
    assert vocabulary.tokens[token_id] == b"<think>"


@pytest.mark.parametrize(
    ("prompt", "ends"),
    [
        ([3, 0, 1], True),
        ([3, 2], True),
        ([2, 8, 8], True),
        ([2, 0], False),
        ([2, THINK, 8], False),
        ([1, 1], False),
        ([8], False),
    ],
)
def test_a_prompt_that_ends_with_it_has_no_reasoning_to_come(prompt: list[int], ends: bool) -> None:
    assert EndMarker(ReasoningConfig(end_str="ab"), VOCABULARY).ends(prompt) is ends


def test_a_prompt_that_ends_with_its_token_ids() -> None:
    marker = EndMarker(ReasoningConfig(end_str="</think>"), VOCABULARY)
    assert [marker.ends(prompt) for prompt in ([0, THINK, 8], [THINK], [THINK, 0], [8])] == [True, True, False, False]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"end_str": "xyz"}, "end_str 'xyz' cannot be written with the model's tokens; set end_token_ids"),
        ({"end_str": "ab</think>"}, "mixes the special token '</think>' with text"),
        ({"end_str": "</s>"}, f"the marker has the stop token {STOP}"),
        ({"end_token_ids": (0, 99)}, "end_token_ids has 99, which is not in the vocabulary"),
        ({"end_token_ids": (-1,)}, "end_token_ids has -1"),
    ],
)
def test_what_the_vocabulary_does_not_have_is_refused(config: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said) as caught:
        EndMarker(ReasoningConfig(**config), VOCABULARY)  # type: ignore[arg-type]
    assert caught.value.field.startswith("reasoning.")


def test_a_marker_that_has_to_be_cut_inside_its_tokens_is_refused() -> None:
    """After `ab`, `aba` would complete it too early, and there is no token `a`."""
    tokens = [b"aba", b"ab", b""]
    vocabulary = Vocabulary(tokens, frozenset({2}), {2: "</s>"}, encoder=GreedyEncoder(tuple(tokens)))
    with pytest.raises(InvalidConfiguration, match=r"cannot be written .* after b'ab'"):
        EndMarker(ReasoningConfig(end_str="aba"), vocabulary)


def test_without_an_encoder_token_ids_are_asked_for() -> None:
    with pytest.raises(InvalidConfiguration, match="set end_token_ids instead"):
        EndMarker(ReasoningConfig(end_str="so"), tiny())


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"end_str": " \n"}, "end_str must be visible text"),
        ({"end_str": "\ud800"}, "without lone surrogates"),
        ({"end_str": 7}, "end_str must be"),
        ({"end_token_ids": "7"}, "end_token_ids must be a list"),
        ({"end_str": "x", "end_token_ids": [7]}, "both end_str and end_token_ids"),
        ({"start_str": "x", "start_token_ids": [7], "end_str": "y"}, "both start_str and start_token_ids"),
        ({"start_str": "<think>"}, "but not how it ends; set end_str"),
        ({"excluded_token_ids": [7]}, "but not how it ends; set end_str"),
    ],
)
def test_no_other_words_say_how_reasoning_ends(config: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        ReasoningConfig(**config)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="did you mean 'end_str'"):
        ReasoningConfig(end_string="x")  # type: ignore[call-arg]
