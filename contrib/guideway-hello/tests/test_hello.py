"""The promises of the plugin."""

import json
import subprocess
import sys

import pytest
from guideway.api import (
    InvalidConfiguration,
    InvalidRequest,
    ModifierContext,
    Request,
    SamplingParams,
    SequenceInfo,
    StepBatch,
    Vocabulary,
)
from guideway_hello import Hello, Wish

VOCABULARY = Vocabulary(tokens=[b"he", b"LLo", b"x", b""], stop_token_ids=frozenset({3}), logits_width=8)
CONTEXT = ModifierContext(vocabulary=VOCABULARY, max_num_sequences=4, max_model_len=64)


def start(modifiers: dict[str, dict[str, object]]) -> Wish | None:
    request = Request(request_id="r", prompt_token_ids=(0,), params=SamplingParams(modifiers=modifiers))
    return Hello({}, CONTEXT).start(request, SequenceInfo(index=0, seed=0, prompt_token_ids=(0,)), None)


def test_a_request_gets_what_it_asks_for() -> None:
    assert start({}) is None
    assert start({"hello": {"letter": "l"}}) == Wish("l", -50.0)
    with pytest.raises(InvalidConfiguration, match="did you mean 'letter'"):
        start({"hello": {"leter": "l"}})
    with pytest.raises(InvalidRequest, match="letter must be one of a to z"):
        start({"hello": {"letter": "ll"}})


def test_every_row_of_a_sequence_is_marked_drafts_included() -> None:
    batch = StepBatch.build([0, 1, 2], [5, 5, 5], [[0, 1], [2], []])
    payload = Hello({}, CONTEXT).prepare(batch, [Wish("l"), None, Wish("h", 9)])
    assert payload is not None
    assert payload.rows.tolist() == [0, 1, 2, 5]
    assert payload.arrays["strength"].tolist() == [-50, -50, -50, 9]
    tables = payload.shared["holds_letter"][payload.arrays["letter"]]
    assert tables[:, :4].tolist() == [[0, 1, 0, 0]] * 3 + [[1, 0, 0, 0]]
    assert tables.shape == (4, 8)


def test_a_model_writes_without_the_letter() -> None:
    command = [sys.executable, "-m", "guideway", "generate", "--model", "demo", "--prompt", "Meet Peter Green."]
    command += ["--max-tokens", "30", "--modifier", 'hello={"letter": "e"}']
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert result["text"]
    assert "e" not in result["text"].lower()
