"""Logit modifiers of every stage inside vLLM, compared with computations outside it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from guideway.devices.numpy.device import NumpyOps
from guideway.pipeline.view import purpose_id

from tests.support.probes import LastWord
from tests.vllm.probes_in_vllm import (
    ALWAYS,
    GUIDEWAY,
    NUM_HIDDEN,
    Peek,
    Second,
    check_nothing_left,
    installed,
    params,
    prompt,
)

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm(start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """vLLM with all probes. Tests must leave no state in it."""
    with installed(tmp_path_factory.mktemp("installed")):
        yield start(GUIDEWAY)


@pytest.fixture(autouse=True)
def nothing_is_left(llm: Any) -> Iterator[None]:
    yield
    check_nothing_left(llm)


class Reference:
    """The demo model outside vLLM."""

    def __init__(self, path: str) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    @torch.no_grad()
    def __call__(self, token_ids: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits and hidden states of the last position."""
        output = self.model(torch.tensor([token_ids]), output_hidden_states=True)
        return output.logits[0, -1], output.hidden_states[-1][0, -1]

    def generate(
        self, prompt_ids: Sequence[int], num_tokens: int, choose: Callable[[torch.Tensor, list[int]], int]
    ) -> list[int]:
        """Return the tokens of an output in which ``choose(logits, token_ids)`` selects each token."""
        token_ids = list(prompt_ids)
        for _ in range(num_tokens):
            token_ids.append(choose(self(token_ids)[0], token_ids))
            if token_ids[-1] == self.model.generation_config.eos_token_id:
                break
        return token_ids[len(prompt_ids) :]


@pytest.fixture(scope="module")
def reference(demo_model: str) -> Reference:
    return Reference(demo_model)


def generate(llm: Any, jobs: Sequence[tuple[Any, Any]]) -> list[Any]:
    """Return the first output of each pair of a prompt and parameters, run in one batch."""
    prompts, wanted = zip(*jobs, strict=True)
    return [output.outputs[0] for output in llm.generate(list(prompts), list(wanted), use_tqdm=False)]


def uniforms(seed: int, position: int, purpose: str, width: int) -> Any:
    """Return `Step.uniform` from the reference operations."""
    return NumpyOps().uniform(
        np.array([seed]), np.array([0]), np.array([position]), purpose_id(*purpose.split("/")), width
    )[0]


BANNED = [279, 306, 269, 227, 264]
"""Tokens that the model finds likely."""
STAGES = {
    "pre_warp": {"green_list": {"key": 11, "delta": 30.0}},
    "stateful": {"chain": {}},
    "mask": {"forbid": {"ids": BANNED}},
    "post_warp": {"second": {"label": "mixed"}},
    "sample": {"gumbel": {}},
}
PATTERN = "([a-z]{2,5} ){3,6}[0-9]{2}"
CONSTRAINTS: list[dict[str, Any]] = [{}, {"regex": PATTERN}]


def acting(stage: str, constraint: dict[str, Any], *, acts: bool = True) -> Any:
    """Return parameters of a request on which the modifier of `stage` acts, or the same without it."""
    modifiers = STAGES[stage] if acts else None
    if stage in ("post_warp", "sample"):
        return params(modifiers, temperature=1.8, top_k=40, seed=5, max_tokens=60, **constraint)
    return params(modifiers, max_tokens=60, **constraint)


def test_modifiers_of_one_stage_act_in_the_order_of_the_configuration(llm: Any) -> None:
    names = [name for name in GUIDEWAY["modifiers"] if name.startswith("last_word_")]
    assert names == ["last_word_b", "last_word_a"]
    LastWord.heard.clear()
    asked = params({"last_word_a": {"id": 300}, "last_word_b": {"id": 301}}, max_tokens=2, ignore_eos=True)
    (output,) = generate(llm, [(prompt(0), asked)])
    assert list(output.token_ids) == [300, 300]
    assert LastWord.heard == names * 2


def test_what_modifiers_report_comes_back(llm: Any) -> None:
    asked = [
        params({"last_word_a": {"id": 300}, "last_word_b": {"id": 301}}, max_tokens=2, ignore_eos=True),
        params({"last_word_a": {"id": 302}, "last_word_b": {"id": 301}}, max_tokens=2, ignore_eos=True),
        params({"last_word_a": {"id": 300}}, max_tokens=9, stop_token_ids=[300]),
    ]
    outputs = llm.generate([prompt(0)] * 3, asked, use_tqdm=False)
    cut, failed, stopped = (output.kv_transfer_params["guideway"] for output in outputs)
    assert cut == {"reports": {"last_word_b": {"said": 301}, "last_word_a": {"said": 300}}}
    assert failed["reports"] == {"last_word_b": {"said": 301}}
    assert failed["error"] == "modifier.last_word_a failed in report: RuntimeError: nothing to tell"
    assert list(outputs[1].outputs[0].token_ids) == [302, 302]
    assert stopped == {"reports": {"last_word_a": {"said": 300}}}


def test_each_acts_on_its_own_request_alone(llm: Any) -> None:
    bystanders = [
        (prompt(0), params()),
        (prompt(1), params(json=SCHEMA)),
        (prompt(2), params(regex="[a-z]{5,20}", temperature=1.0, seed=3)),
        (prompt(3), params(temperature=0.8, seed=4)),
    ]
    jobs = [(prompt(4 + i), acting(stage, c)) for i, stage in enumerate(STAGES) for c in CONSTRAINTS]
    without = [(prompt(4 + i), acting(stage, c, acts=False)) for i, stage in enumerate(STAGES) for c in CONSTRAINTS]
    alone = generate(llm, bystanders)
    untouched = generate(llm, without)
    solo = [generate(llm, [job])[0] for job in jobs]
    together = generate(llm, [*jobs[:5], *bystanders[:2], *jobs[5:], *bystanders[2:]])
    mixed, beside = [*together[:5], *together[7:12]], [*together[5:7], *together[12:]]
    assert [o.token_ids for o in beside] == [o.token_ids for o in alone]
    assert [o.token_ids for o in mixed] == [o.token_ids for o in solo]
    for (_, asked), changed, plain in zip(jobs, mixed, untouched, strict=True):
        assert changed.token_ids != plain.token_ids, asked.extra_args
        if asked.structured_outputs is not None:
            assert re.fullmatch(PATTERN, changed.text)


def test_pre_warp_sees_the_raw_logits_and_the_history(llm: Any, reference: Reference) -> None:
    def choose(logits: torch.Tensor, token_ids: list[int]) -> int:
        hashed = NumpyOps().uniform(np.array([11]), np.array(token_ids[-1:]), np.array(token_ids[-1:]), 0, len(logits))[
            0
        ]
        return int(np.argmax(logits.numpy() + 9.0 * (hashed < 0.5)))

    expected = reference.generate(prompt(0), 16, choose)
    output = generate(llm, [(prompt(0), params({"green_list": {"key": 11, "delta": 9.0}}, max_tokens=16))])[0]
    assert output.token_ids == expected


def test_a_second_mask_forbids(llm: Any, reference: Reference) -> None:
    def choose(logits: torch.Tensor, token_ids: list[int]) -> int:
        logits[BANNED] = -torch.inf
        return int(logits.argmax())

    expected = reference.generate(prompt(0), 16, choose)
    output = generate(llm, [(prompt(0), params({"forbid": {"ids": BANNED}}, max_tokens=16))])[0]
    assert output.token_ids == expected


def warped(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """Return the log-probabilities of the distribution to draw from."""
    logits = logits / temperature
    logits[logits < logits.topk(top_k).values[-1]] = -torch.inf
    ordered, ids = logits.softmax(-1).sort(descending=True)
    logits[ids[ordered.cumsum(-1) - ordered >= top_p]] = -torch.inf
    return logits.log_softmax(-1)


def test_post_warp_sees_the_distribution_that_is_drawn_from(llm: Any, reference: Reference) -> None:
    warm = {"temperature": 2.0, "top_k": 12, "top_p": 0.98}
    Second.heard.clear()
    prompts = [prompt(i)[: 8 + i] for i in range(3)]  # cut, so that many continuations are likely
    jobs = [(p, params({"second": {"label": f"{i}"}}, max_tokens=12, seed=i, **warm)) for i, p in enumerate(prompts)]
    outputs = generate(llm, [*jobs, (prompt(9), params())])
    for i, output in enumerate(outputs[:3]):
        heard = Second.heard[f"{i}"]
        assert [token_id for token_id, _, _ in heard] == output.token_ids
        sizes = set()
        for j, (token_id, ids, logprobs) in enumerate(heard):
            expected = warped(reference([*prompts[i], *output.token_ids[:j]])[0], **warm)
            seen = torch.full_like(expected, -torch.inf)
            seen[ids] = torch.tensor(logprobs)
            torch.testing.assert_close(seen, expected, atol=2e-4, rtol=1e-4)
            support = int((expected > -torch.inf).sum())
            # almost impossible, unless it is the only one
            assert support == 1 or token_id != int(expected.argmax())
            sizes.add(support)
        assert len(sizes) > 2


def test_an_owner_of_the_draw_draws_from_seed_and_position(llm: Any, reference: Reference) -> None:
    ids = prompt(2)

    def choose(logits: torch.Tensor, token_ids: list[int]) -> int:
        logprobs = warped(logits, 1.3, len(logits), 1.0).numpy()
        return int(np.argmax(logprobs - np.log(-np.log(uniforms(77, len(token_ids), "gumbel/gumbel", len(logits))))))

    expected = reference.generate(ids, 16, choose)
    asked = params({"gumbel": {}}, temperature=1.3, seed=77, max_tokens=16, ignore_eos=True)
    beside = [(prompt(i), params(temperature=1.0)) for i in range(3)]
    for jobs in ([(ids, asked)], [*beside, (ids, asked), (ids, asked)]):
        assert generate(llm, jobs)[-1].token_ids == expected


def test_an_owner_of_the_draw_is_refused_where_nothing_is_drawn(llm: Any) -> None:
    assert_refused(llm, params({"gumbel": {}}), "'gumbel' owns the draw, but at temperature 0")


def assert_refused(llm: Any, asked: Any, said: str) -> None:
    """Check that a request is refused before it reaches the engine core, and that the next request is served."""
    from vllm.exceptions import VLLMValidationError

    with pytest.raises(VLLMValidationError, match=re.escape(said)):
        llm.generate([prompt(0)], [asked], use_tqdm=False)
    assert generate(llm, [(prompt(0), params(choice=["yes"]))])[0].text == "yes"


@pytest.mark.parametrize("late", [{"second": {"label": "late"}}, {"gumbel": {}}])
@pytest.mark.parametrize(
    ("field", "value"),
    [("logprobs", 3), ("logprobs", 0), ("bad_words", ["a"]), ("allowed_token_ids", [1, 2, 3])],
)
def test_what_only_vllms_own_draw_obeys_is_refused_beside_a_late_modifier(
    llm: Any, late: dict[str, Any], field: str, value: object
) -> None:
    asked = params(late, temperature=1.0, **{field: value})
    assert_refused(llm, asked, f"so guideway draws the tokens of this request; {field} only go with vLLM's own draw")


def test_logprobs_go_with_an_early_modifier(llm: Any, reference: Reference) -> None:
    early = {"forbid": {"ids": BANNED}}
    output = generate(llm, [(prompt(0), params(early, max_tokens=6, logprobs=2)), (prompt(1), params(logprobs=1))])[0]
    assert len(output.logprobs) == 6
    for j, (token_id, found) in enumerate(zip(output.token_ids, output.logprobs, strict=True)):
        logits = reference([*prompt(0), *output.token_ids[:j]])[0]
        logits[BANNED] = -torch.inf
        assert found[token_id].logprob == pytest.approx(float(logits.log_softmax(-1)[token_id]), abs=2e-4)


@pytest.mark.parametrize(
    ("modifiers", "said"),
    [
        ({"guidance": {"scale": 2.0, "negative_prompt": [5]}}, "'guidance' needs companions, which this host"),
        ({"decider": {}}, "'decider' needs scheduler_draw, which this host does not offer"),
        ({"green_lst": {}}, "no logit modifier 'green_lst' is configured"),
        ({"hello": {"letter": "ee"}}, "letter must be one of a to z"),
        ("{green_list", "guideway.modifiers is not JSON"),
    ],
)
def test_what_cannot_act_is_refused_with_the_reason(llm: Any, modifiers: Any, said: str) -> None:
    assert_refused(llm, params(modifiers), said)


def test_hidden_states_are_those_of_the_modifiers_own_rows(llm: Any, reference: Reference) -> None:
    Peek.heard.clear()
    jobs = [
        (prompt(0), params(max_tokens=4)),
        (prompt(1), params({"peek": {"label": "a"}}, max_tokens=6)),
        (prompt(2), params(max_tokens=9, json=SCHEMA)),
        (prompt(3), params({"peek": {"label": "b"}, "chain": {}}, max_tokens=9, json=SCHEMA)),
        (prompt(4), params({"peek": {"label": "c"}, "gumbel": {}}, max_tokens=9, temperature=1.0, seed=1)),
    ]
    outputs = generate(llm, jobs)
    for i, label in ((1, "a"), (3, "b"), (4, "c")):
        heard, token_ids = Peek.heard[label], outputs[i].token_ids
        assert len(heard) == len(token_ids)
        for j, found in enumerate(heard):
            expected = reference([*prompt(i), *token_ids[:j]])[1][:NUM_HIDDEN]
            torch.testing.assert_close(torch.tensor(found), expected, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("constraint", [{}, {"json": SCHEMA}, {"choice": ["a quiet place", "a quiet plaza"]}])
def test_finish_ends_a_request_with_the_token_that_brought_it(llm: Any, constraint: dict[str, Any]) -> None:
    before = generate(llm, [(prompt(0), params(**constraint)), (prompt(1), params())])
    engine = llm.llm_engine
    engine.add_request("ends", {"prompt_token_ids": prompt(0)}, params({"finisher": {"after": 3}}, **constraint))
    engine.add_request("stays", {"prompt_token_ids": prompt(1)}, params())
    finished: dict[str, tuple[int, Any]] = {}
    num_steps = 0
    while engine.has_unfinished_requests():
        num_steps += 1
        finished |= {output.request_id: (num_steps, output.outputs[0]) for output in engine.step() if output.finished}
    step, ended = finished["ends"]
    # with asynchronous scheduling the first step only starts
    queued = int(engine.vllm_config.scheduler_config.async_scheduling)
    assert (step, ended.finish_reason) == (3 + queued, "stop")
    assert ended.token_ids == before[0].token_ids[:3]
    assert finished["stays"][1].token_ids == before[1].token_ids


def test_finish_beside_another_end_is_one_end(llm: Any) -> None:
    """The token limit is reached, and the grammar complete, at the same token."""
    jobs = [
        (prompt(0), params({"finisher": {"after": 3}}, max_tokens=3)),
        (prompt(1), params({"finisher": {"after": 2}, "gumbel": {}}, temperature=1.0, regex="a")),
    ]
    first, second = generate(llm, jobs)
    assert (len(first.token_ids), first.finish_reason) == (3, "length")
    assert (second.text, second.finish_reason) == ("a", "stop")


def test_one_acts_without_being_asked_for(llm: Any) -> None:
    jobs = [([ALWAYS, *prompt(0)], params(max_tokens=5)), (prompt(0), params(max_tokens=5))]
    always, plain = generate(llm, jobs)
    assert always.token_ids == [ALWAYS] * 5
    assert plain.token_ids == generate(llm, jobs[1:])[0].token_ids


def test_the_grammar_wins_over_modifiers_and_says_so(llm: Any) -> None:
    (output,) = llm.generate([[ALWAYS, *prompt(0)]], [params(choice=["yes"])], use_tqdm=False)
    assert output.outputs[0].text == "yes"
    assert output.kv_transfer_params["guideway"]["unenforced"] == ["modifier.always"]


def test_options_may_come_as_json(llm: Any) -> None:
    asked = {"green_list": {"key": 11, "delta": 9.0}}
    both = generate(llm, [(prompt(0), params(asked)), (prompt(0), params(json.dumps(asked)))])
    assert both[0].token_ids == both[1].token_ids


def test_the_tutorials_modifier_runs(llm: Any) -> None:
    jobs = [(prompt(0), params()), (prompt(0), params({"hello": {"letter": "e"}}))]
    plain, without_e = generate(llm, jobs)
    assert "e" in plain.text
    assert "e" not in without_e.text
    assert without_e.text


def test_legacy_processors_run(llm: Any, reference: Reference) -> None:
    """The processor is a plain callable that forbids repeated tokens."""
    num_prompt = len(prompt(0))

    def choose(logits: torch.Tensor, token_ids: list[int]) -> int:
        logits[token_ids[num_prompt:]] = -torch.inf
        return int(logits.argmax())

    expected = reference.generate(prompt(0), 16, choose)
    jobs = [(prompt(0), params({"legacy": {}}, max_tokens=16, ignore_eos=True)), (prompt(1), params())]
    output = generate(llm, jobs)[0]
    assert output.token_ids == expected
    assert len(set(output.token_ids)) == 16
