"""The documented behavior of the validator."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from guideway.api import (
    InvalidConfiguration,
    InvalidRequest,
    JsonSchema,
    Request,
    SamplingParams,
    ValidationContext,
)
from guideway_tenant_policy import Limits, Policy, guideway_validate_request

CONTEXT = ValidationContext(
    model="demo", max_model_len=100, vocabulary_size=50, grammars=("one", "two"), modifiers=("kgw", "cfg")
)
POLICY = """\
[default]
max_tokens = 10
max_sequences = 2
[tenants.acme]
max_tokens = 20
[tenants.guest]
"""


def request(tenant: str = "acme", *, num_prompt_tokens: int = 5, **params: object) -> Request:
    asked = SamplingParams(**{"max_tokens": 5, **params})  # type: ignore[arg-type]
    return Request(request_id="r", prompt_token_ids=(1,) * num_prompt_tokens, params=asked, tenant=tenant)


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY, encoding="utf-8")
    monkeypatch.setenv("GUIDEWAY_TENANT_POLICY", str(path))
    return path


@pytest.mark.parametrize(
    ("limits", "allowed", "refused", "field", "said"),
    [
        (
            {"max_tokens": 20},
            {"max_tokens": 20},
            {"max_tokens": 21},
            "max_tokens",
            "of tenant 'acme' may be at most 20",
        ),
        ({"max_tokens": 95}, {"max_tokens": None}, {"max_tokens": 96}, "max_tokens", "not 96"),
        (
            {"max_tokens": 94},
            {"max_tokens": 94},
            {"max_tokens": None},
            "max_tokens",
            "is not set, .* at most 94, not 95",
        ),
        ({"max_prompt_tokens": 5}, {}, {"num_prompt_tokens": 6}, "prompt", "may be at most 5, not 6"),
        ({"max_sequences": 2}, {"n": 2}, {"n": 3}, "n", "n of tenant 'acme' may be at most 2, not 3"),
        ({"max_sequences": 2}, {"n": 1, "best_of": 2}, {"n": 1, "best_of": 3}, "best_of", "at most 2, not 3"),
        ({"max_logprobs": 1}, {"logprobs": 1}, {"logprobs": 2}, "logprobs", "at most 1, not 2"),
        ({"max_logprobs": -1}, {"logprobs": None}, {"prompt_logprobs": 0}, "prompt_logprobs", "at most -1, not 0"),
        ({"min_temperature": 0.5}, {"temperature": 0.5}, {"temperature": 0}, "temperature", "at least 0.5, not 0"),
        (
            {"min_temperature": 1, "max_temperature": 1},
            {"temperature": 1},
            {"temperature": 1.5},
            "temperature",
            "at least 1 and at most 1, not 1.5",
        ),
        ({"min_priority": 0}, {"priority": 0}, {"priority": -1}, "priority", "at least 0 .* not -1"),
        (
            {"modifiers": ["kgw"]},
            {"modifiers": {"kgw": {}}},
            {"modifiers": {"cfg": {}}},
            "modifiers.cfg",
            "allowed: kgw",
        ),
        ({"modifiers": []}, {"modifiers": {}}, {"modifiers": {"kgw": {}}}, "modifiers.kgw", "allowed: none"),
        (
            {"grammars": ["two"]},
            {"constraint": JsonSchema({}, strategy="two")},
            {"constraint": JsonSchema({}, strategy="one")},
            "constraint.strategy",
            "names 'one'; set its strategy to one that is allowed: two",
        ),
        (
            {"grammars": ["two", "three", "one"]},
            {"constraint": JsonSchema({})},
            {"constraint": JsonSchema({}, strategy="four")},
            "constraint.strategy",
            "allowed: one, two",
        ),
        ({"grammars": ["two"]}, {}, {"constraint": JsonSchema({})}, "constraint.strategy", "may choose 'one'"),
    ],
)
def test_every_limit(
    limits: dict[str, object], allowed: dict[str, object], refused: dict[str, object], field: str, said: str
) -> None:
    lines = "".join(f"{name} = {value!r}\n" for name, value in limits.items())
    policy = Policy.parse(f"[tenants.acme]\n{lines}")
    policy.check(request(**allowed), CONTEXT)  # type: ignore[arg-type]
    Policy.parse("[tenants.acme]").check(request(**refused), CONTEXT)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=said) as caught:
        policy.check(request(**refused), CONTEXT)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_a_tenant_has_what_its_table_leaves_out_from_the_default(policy: Path) -> None:
    for tenant, num_tokens in (("acme", 20), ("guest", 10)):
        guideway_validate_request(request(tenant, max_tokens=num_tokens, n=2), CONTEXT)
        with pytest.raises(InvalidRequest, match=f"at most {num_tokens}"):
            guideway_validate_request(request(tenant, max_tokens=num_tokens + 1), CONTEXT)
        with pytest.raises(InvalidRequest, match="n of tenant"):
            guideway_validate_request(request(tenant, n=3), CONTEXT)


def test_tenants_that_are_not_listed_are_refused_or_have_the_default(policy: Path) -> None:
    for tenant, said in (("other", "tenant 'other' is not in the policy"), ("", "a request without a tenant is not")):
        with pytest.raises(InvalidRequest, match=said) as caught:
            guideway_validate_request(request(tenant), CONTEXT)
        assert caught.value.field == "tenant"
    policy.write_text(f'unknown = "default"\n{POLICY}\n[tenants.""]\nmax_tokens = 1', encoding="utf-8")
    guideway_validate_request(request("other"), CONTEXT)
    with pytest.raises(InvalidRequest, match="max_tokens of a request without a tenant may be at most 1"):
        guideway_validate_request(request(""), CONTEXT)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tenants.acme]\nmax_token = 3", "unknown option 'max_token' of tenants.acme; did you mean 'max_tokens'"),
        ("[default]\nmax_token = 3", "unknown option 'max_token' of default; did you mean 'max_tokens'"),
        ("[tenants.acme]\nmax_tokens = '3'", "option 'max_tokens' of tenants.acme must be"),
        ("[tenants.acme]\nmax_temperature = nan", "max_temperature must be finite"),
        ("[tenant.acme]", "unknown key 'tenant'; did you mean 'tenants'"),
        ("unknown = 'allow'", "unknown must be 'deny' or 'default', not 'allow'"),
        ("default = 3", "default must be a table"),
        ("tenants = []", "tenants must be a table"),
        ("tenants = {acme = 3}", "tenants.acme must be a table"),
        ("unknown = = 3", "is not TOML: .* line 1"),
        ("a = " + "[" * 100_000, "is not TOML"),
        (None, "No such file"),
    ],
)
def test_a_broken_policy_refuses_every_request(text: str | None, said: str, policy: Path) -> None:
    guideway_validate_request(request(), CONTEXT)
    if text is None:
        policy.unlink()
    else:
        policy.write_text(text, encoding="utf-8")
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=rf"every request is refused: .*policy\.toml: .*{said}"):
            guideway_validate_request(request(), CONTEXT)
    policy.write_text(POLICY, encoding="utf-8")
    guideway_validate_request(request(), CONTEXT)


def test_without_a_policy_every_request_is_refused(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy.write_bytes(b"# \xff")
    with pytest.raises(InvalidRequest, match=r"every request is refused: .*can't decode"):
        guideway_validate_request(request(), CONTEXT)
    monkeypatch.delenv("GUIDEWAY_TENANT_POLICY")
    with pytest.raises(InvalidRequest, match="GUIDEWAY_TENANT_POLICY names no file"):
        guideway_validate_request(request(), CONTEXT)


def test_a_policy_is_read_again_when_it_changes_and_only_then(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guideway_validate_request(request(max_tokens=20), CONTEXT)
    status = policy.stat()
    policy.write_text(POLICY.replace("20", "10"), encoding="utf-8")
    os.utime(policy, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(InvalidRequest, match="at most 10"):
        guideway_validate_request(request(max_tokens=20), CONTEXT)
    monkeypatch.setattr(Policy, "parse", None)
    guideway_validate_request(request(max_tokens=10), CONTEXT)


def test_limits_can_be_built_in_code() -> None:
    limits = Limits(max_tokens=3)
    with pytest.raises(InvalidRequest, match="at most 3"):
        limits.check(request(), CONTEXT)
    replace(limits, max_tokens=None).check(request(), CONTEXT)
    with pytest.raises(InvalidConfiguration, match="min_temperature must be finite"):
        Limits(min_temperature=float("inf"))


def test_what_generates_nothing_is_held_against_the_limits_that_mean_something_then() -> None:
    limits = Limits(max_tokens=1, min_temperature=1.0, max_prompt_tokens=5, min_priority=0)
    embedding = replace(request(max_tokens=None), task="embed")
    limits.check(embedding, CONTEXT)
    with pytest.raises(InvalidRequest, match="at most 5, not 6"):
        limits.check(replace(embedding, prompt_token_ids=(1,) * 6), CONTEXT)
    with pytest.raises(InvalidRequest, match="priority"):
        limits.check(replace(embedding, params=SamplingParams(priority=-1)), CONTEXT)
    with pytest.raises(InvalidRequest, match="max_tokens"):
        limits.check(replace(embedding, task="generate"), CONTEXT)
