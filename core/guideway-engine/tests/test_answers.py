"""Output of ``guideway generate`` for results: lines of JSON, a table, messages on standard error."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from guideway import Completion, FinishReason, GenerationResult, InvalidRequest, JsonSchema, Regex, SamplingParams
from guideway.api.types import Loss, Losses, TokenLogprobs
from guideway_engine.command_line.answers import line_of, print_object, print_table, report
from guideway_engine.command_line.jobs import Job
from guideway_engine.command_line.lines import Lines

SCORES = (
    TokenLogprobs(5, -0.25, ((5, -0.25), (6, -2.0)), "a", ("a", "b")),
    TokenLogprobs(6, -math.inf, ((5, -0.5), (7, -math.inf)), "b", ("a", "c")),
)
SEVERAL = GenerationResult(
    request_id="r",
    outputs=(
        Completion(index=2, text="first", token_ids=(5, 6), stop="END", logprobs=SCORES[:1] * 2),
        Completion(index=0, text="second", token_ids=(5,) * 3, finish_reason=FinishReason.LENGTH, unenforced=("x",)),
    ),
    prompt_logprobs=(None, SCORES[1]),
)
ONE = GenerationResult(request_id="r", outputs=(Completion(text="only", token_ids=(1,), stop=1, strategy="mine"),))
REFUSED = GenerationResult(
    request_id="r",
    outputs=(Completion(finish_reason=FinishReason.REFUSED, error=InvalidRequest("no such thing", field="n")),),
)


def entry(token_id: int, token: str, logprob: float | None, *top: dict[str, Any]) -> dict[str, Any]:
    shown = {"token_id": token_id, "token": token, "logprob": logprob}
    return shown | {"top": list(top)} if top else shown


def job(name: str, params: SamplingParams | None = None) -> Job:
    return Job(name, f"prompt {name}", "", params or SamplingParams())


def print_line(index: int, job: Job, result: GenerationResult) -> None:
    Lines(None).write(line_of(index, job, result), job.id)


def test_a_line_has_the_first_output_and_all_of_them_if_there_are_more(capsys: pytest.CaptureFixture[str]) -> None:
    print_line(3, job("a"), SEVERAL)
    out = capsys.readouterr().out
    assert "Infinity" not in out, "which is no JSON"
    line = json.loads(out)
    first, second = line.pop("outputs")
    assert line.pop("prompt_logprobs") == [None, entry(6, "b", None, entry(5, "a", -0.5), entry(7, "c", None))]
    assert line == {"index": 3, "id": "a"} | {key: value for key, value in first.items() if key != "index"}
    assert (first["index"], first["text"], first["stop"], first["num_tokens"]) == (2, "first", "END", 2)
    assert first["logprobs"] == [entry(5, "a", -0.25, entry(5, "a", -0.25), entry(6, "b", -2.0))] * 2
    assert (second["index"], second["finish_reason"], second["unenforced"]) == (0, "length", ["x"])
    assert "logprobs" not in second


def test_a_line_of_one_output_is_flat(capsys: pytest.CaptureFixture[str]) -> None:
    print_line(0, job("a"), ONE)
    print_line(1, job("b"), REFUSED)
    one, refused = map(json.loads, capsys.readouterr().out.splitlines())
    assert one == {
        "index": 0,
        "id": "a",
        "text": "only",
        "finish_reason": "stop",
        "stop": 1,
        "num_tokens": 1,
        "strategy": "mine",
        "unenforced": [],
        "losses": [],
        "num_reasoning_tokens": 0,
        "answer_start": 0,
        "closed_early": False,
        "valid": None,
        "error": None,
    }
    assert refused["error"] == {"type": "InvalidRequest", "message": "no such thing", "field": "n"}


def test_losses_are_told_with_their_places(capsys: pytest.CaptureFixture[str]) -> None:
    lost = Losses([Loss("#/properties/a", "uniqueItems", "too many")])
    output = Completion(text="x", strategy="mine", unenforced=("uniqueItems", "format"), losses=lost)
    result = GenerationResult(request_id="r", outputs=(output,))
    print_line(0, job("a"), result)
    report([(job("a"), result)])
    captured = capsys.readouterr()
    (loss,) = json.loads(captured.out)["losses"]
    assert loss == {"pointer": "#/properties/a", "keyword": "uniqueItems", "reason": "too many"}
    assert "mine does not enforce `uniqueItems` at #/properties/a, `format`" in captured.err


def test_a_table_has_a_row_per_output(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    print_table([(job("a"), SEVERAL), (job("b"), ONE), (job("c"), REFUSED)])
    shown = capsys.readouterr().out
    for expected in ("output 1 of 2", "stop 'END'", "mean logprob -0.25", "output 2 of 2", "not enforced: `x`", "mine"):
        assert expected in shown
    assert shown.count("prompt a") == shown.count("no such thing") == 1
    assert "output 1 of 1" not in shown


def test_a_table_has_places(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Places of keywords in the schema, and of refused prompts in the input, unless their errors have them."""
    monkeypatch.setenv("COLUMNS", "200")
    params = SamplingParams(constraint=JsonSchema({"properties": {"a": {"not": {}}}}))
    left = GenerationResult(request_id="r", outputs=(Completion(text="{}", unenforced=("not", "closing")),))
    unread = replace(job("c"), line=8, error=InvalidRequest("no such thing", field="n"))
    print_table([(job("a", params), left), (replace(job("b"), line=7), REFUSED), (unread, REFUSED)])
    shown = capsys.readouterr().out
    assert "not enforced: `not` at #/properties/a/not, `closing`" in shown
    assert "line 7: no such thing" in shown and "line 8" not in shown


def test_the_report_names_prompt_and_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert report([(job("a"), SEVERAL), (job("b"), ONE)]) == 0
    assert "prompt a, output 0: not enforced: `x`" in capsys.readouterr().err
    assert report([(job("a", SamplingParams(constraint=Regex("a"))), SEVERAL)]) == 1
    assert "the answer to prompt a, output 0 was cut after 3 tokens" in capsys.readouterr().err
    for stop, by in ((":", "the stop string ':'"), (None, "a modifier")):
        output = Completion(text="{", token_ids=(5,), stop=stop, strategy="mine", unenforced=("x", "constraint"))
        assert report([(job("d"), GenerationResult(request_id="r", outputs=(output,)))]) == 1
        said, rest = capsys.readouterr().err.splitlines()
        assert said.endswith(f"the answer to prompt d was cut by {by} before it satisfied the constraint")
        assert rest == "guideway: prompt d: mine does not enforce `x`"
    assert report([(job("c"), REFUSED)]) == 1
    assert capsys.readouterr().err == "guideway: prompt c was refused: no such thing\n"


def test_what_is_wrong_with_several_prompts_in_the_same_words_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert report([(job(name), REFUSED) for name in "abcd"] + [(job("e"), ONE)]) == 1
    assert capsys.readouterr().err == "guideway: each of 4 prompts (a, b, c, ...) was refused: no such thing\n"
    params = SamplingParams(constraint=Regex("a+"))
    cut = Completion(text="{", token_ids=(5, 6), finish_reason=FinishReason.LENGTH, strategy="s", unenforced=("x",))
    results = [GenerationResult(request_id="r", outputs=(each,)) for each in (cut, cut, replace(cut, token_ids=(5,)))]
    assert report([(job(name, params), each) for name, each in zip("abc", results, strict=True)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "guideway: the answer to each of 2 prompts (a, b) was cut after 2 tokens and may be incomplete; "
        "raise --max-tokens",
        "guideway: each of 3 prompts (a, b, c): s does not enforce `x`",
        "guideway: the answer to prompt c was cut after 1 token and may be incomplete; raise --max-tokens",
    ]


def test_nothing_printed_commands_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters may be in the prompt, its id, the answer, an error or an unenforced keyword."""
    bad = "\x1b]0;mine\x07\x9b2J\u202e"
    answer = Completion(text=bad, token_ids=(1,), strategy="s", unenforced=(f"min{bad}",))
    refused = Completion(finish_reason=FinishReason.REFUSED, error=InvalidRequest(f"no {bad}", field="n"))
    results = [GenerationResult(request_id="r", outputs=(output,)) for output in (answer, refused)]
    jobs = [Job(bad, bad, "", SamplingParams()) for _ in results]
    for i, result in enumerate(results):
        print_line(i, jobs[i], result)
    lines = capsys.readouterr().out
    assert [json.loads(line)["id"] for line in lines.splitlines()] == [bad] * 2
    print_table(list(zip(jobs, results, strict=True)))
    assert report(list(zip(jobs, results, strict=True))) == 1
    shown = capsys.readouterr()
    for text in (lines, shown.out, shown.err):
        assert not set(text) & set(bad[0] + "\x07\x9b\u202e")


def test_the_only_answer_is_shown_as_the_object_that_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"name": "Zoë", "bad": "\x1b]0;mine\x07", "ages": [31, 2.5], "more": {}}
    output = Completion(text=json.dumps(value, separators=(",", ":")), token_ids=(1, 2), strategy="mine")
    assert print_object([(job("a"), GenerationResult(request_id="r", outputs=(output,)))])
    shown = capsys.readouterr()
    assert json.loads(shown.out) == value
    assert "\n" in shown.out.strip() and "\x1b" not in shown.out
    assert shown.err == "guideway: stop, 2 tokens, mine\n"


@pytest.mark.parametrize(
    "outputs",
    [
        *((Completion(text=text),) for text in ("no JSON", '{"cut": ', "31", '"text"')),
        (Completion(text="{}"), Completion(text="{}")),
        (Completion(text="hm</think>{}", num_reasoning_tokens=1, answer_start=10),),
        REFUSED.outputs,
    ],
    ids=lambda outputs: " ".join(output.text or "refused" for output in outputs),
)
def test_anything_else_is_for_the_table(outputs: tuple[Completion, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert not print_object([(job("a"), GenerationResult(request_id="r", outputs=outputs))])
    assert capsys.readouterr() == ("", "")


def test_a_table_tells_reasoning_and_how_an_answer_was_closed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    output = Completion(
        text="hm</think>{}", token_ids=(1,), num_reasoning_tokens=1, answer_start=10, closed_early=True, valid=False
    )
    answered = [(job("a"), GenerationResult(request_id="r", outputs=(output,)))]
    print_table(answered)
    shown = capsys.readouterr().out
    for expected in ("hm</think>{}", "1 token\n".strip(), "1 of reasoning", "closed early", "not valid"):
        assert expected in shown
    assert "1 tokens" not in shown
    monkeypatch.setenv("FORCE_COLOR", "1")
    print_table(answered)
    assert "\x1b[2mhm</think>" in capsys.readouterr().out, "reasoning is dim"


def test_what_a_table_says_is_not_said_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert report([(job("c"), REFUSED), (job("a"), SEVERAL)], in_table=True) == 1
    assert capsys.readouterr().err == ""
    assert report([(job("a", SamplingParams(constraint=Regex("a"))), SEVERAL)], in_table=True) == 1
    assert "raise --max-tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("from_line", "said"),
    [
        (False, "try --no-close, --echo or --max-tokens 12, and other=False"),
        (True, 'try "close": false, "echo": true or "max_tokens": 12, and other=False'),
    ],
)
def test_parameters_are_named_as_who_wrote_them_knows_them(
    from_line: bool, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = InvalidRequest("try close=False, echo=True or max_tokens=12, and other=False", field="max_tokens")
    refused = Completion(finish_reason=FinishReason.REFUSED, error=error)
    asked = replace(job("c"), from_line=from_line)
    assert report([(asked, GenerationResult(request_id="r", outputs=(refused,)))]) == 1
    assert capsys.readouterr().err == f"guideway: prompt c was refused: {said}\n"
