"""The tenant policy in an engine and on the command line, found by its name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from guideway import Engine, EngineConfig, FinishReason, InvalidRequest, PluginSettings, Regex, SamplingParams
from guideway.api import Request, ValidationContext
from guideway.command_line.program import main
from guideway.plugins import Plugins

from tests.docs.blocks import code_blocks, run_block

POLICY = """\
[tenants.acme]
max_tokens = 20
max_prompt_tokens = 10
grammars = ["llguidance"]
[tenants.guest]
max_sequences = 1
"""


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY, encoding="utf-8")
    monkeypatch.setenv("GUIDEWAY_TENANT_POLICY", str(path))
    return path


def test_it_is_found_and_acts_only_if_enabled(policy: Path) -> None:
    context = ValidationContext(model="", max_model_len=100, vocabulary_size=50, grammars=(), modifiers=())
    request = Request(request_id="r", prompt_token_ids=(1,), params=SamplingParams(max_tokens=21), tenant="acme")
    assert Plugins().hooks().validate_request == ()
    (hook,) = Plugins(settings=PluginSettings(enable=("tenant_policy",))).hooks().validate_request
    assert hook.plugin == "guideway-tenant-policy/hooks.tenant_policy"
    with pytest.raises(InvalidRequest, match="at most 20"):
        hook(request=request, context=context)


def test_in_an_engine_it_refuses_what_a_tenant_may_not(policy: Path) -> None:
    config = policy.with_name("guideway.toml")
    config.write_text(
        'model = "demo"\ngrammar = ["reference", "llguidance"]\nplugins = {enable = ["tenant_policy"]}\n',
        encoding="utf-8",
    )
    prompts = {
        "fine": ("acme", SamplingParams(max_tokens=20), None),
        "long": ("acme", SamplingParams(max_tokens=21), "max_tokens"),
        "anything": ("acme", SamplingParams(max_tokens=9, constraint=Regex("a+")), "constraint.strategy"),
        "named": ("acme", SamplingParams(max_tokens=9, constraint=Regex("a", strategy="llguidance")), None),
        "many words, more than ten tokens in any case": ("acme", SamplingParams(max_tokens=9), "prompt"),
        "two": ("guest", SamplingParams(max_tokens=9, n=2, temperature=1.0), "n"),
        "guest": ("guest", SamplingParams(max_tokens=2), None),
        "other": ("other", SamplingParams(max_tokens=2), "tenant"),
    }
    tenants, params, fields = zip(*prompts.values(), strict=True)
    with Engine(EngineConfig.load(config)) as engine:
        results = engine.generate(list(prompts), list(params), tenants=list(tenants))
        assert [r.error and getattr(r.error, "field", r.error) for r in results] == list(fields)
        assert {r.finish_reason is FinishReason.REFUSED for r in results if r.error} == {True}
        assert results[3].text == "a"

        policy.write_text("[tenants.acme]\nmax_token = 3", encoding="utf-8")
        (broken,) = engine.generate(["fine"], SamplingParams(max_tokens=2), tenants="acme")
        assert "every request is refused: " in str(broken.error) and "did you mean 'max_tokens'" in str(broken.error)
        policy.write_text(POLICY, encoding="utf-8")
        (again,) = engine.generate(["fine"], SamplingParams(max_tokens=2), tenants="acme")
        assert again.error is None


def test_an_operator_can_check_a_policy(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["tenant-policy"]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines() == [
        "tenant 'acme': max_tokens 20, max_prompt_tokens 10, grammars llguidance",
        "tenant 'guest': max_sequences 1",
        "others: refused",
    ]
    other = policy.with_name("other.toml")
    other.write_text('unknown = "default"\n[tenants.acme]\nmodifiers = []', encoding="utf-8")
    assert main([*command, str(other)]) == 0
    assert capsys.readouterr().out.splitlines() == ["tenant 'acme': modifiers none", "others: no limits"]
    other.write_text("[tenant]", encoding="utf-8")
    assert main([*command, str(other)]) == 1
    assert "unknown key 'tenant'; did you mean 'tenants'?" in capsys.readouterr().err


def test_the_example_of_its_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "contrib/guideway-tenant-policy/README.md"
    (example,) = code_blocks(page, "python")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    acme, guest, other = run_block(example, page, {"__name__": "readme"}).splitlines()
    assert acme.startswith("acme ") and acme.endswith(" None")
    assert guest == "guest refused max_tokens of tenant 'guest' may be at most 32, not 50"
    assert other == "other refused tenant 'other' is not in the policy"
