"""Tests of the settings under ``additional_config["guideway"]``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from guideway.api import InvalidConfiguration
from guideway.plugins import PluginSettings
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy
from guideway_vllm.config import GuestConfig
from guideway_vllm.parts import check_server, whitespace_of
from guideway_vllm.stock.strategy import StockStrategy

EXTENSION = "guideway_vllm.worker.WorkerExtension"


def vllm_config(
    additional: Any, *, device: str = "cpu", extension: str = "", drafts: object = None, v2: bool = False
) -> Any:
    """Return a stub of a ``VllmConfig``."""
    return SimpleNamespace(
        additional_config=additional,
        device_config=SimpleNamespace(device_type=device),
        parallel_config=SimpleNamespace(worker_extension_cls=extension),
        scheduler_config=SimpleNamespace(async_scheduling=True),
        speculative_config=drafts,
        use_v2_model_runner=v2,
    )


def of(**given: Any) -> GuestConfig:
    config = GuestConfig.of(vllm_config({"guideway": given}))
    assert config is not None
    return config


@pytest.mark.parametrize("additional", [{}, {"other": {"grammar": ["x"]}}, None, "guideway"])
def test_without_the_key_everything_is_left_to_vllm(additional: Any) -> None:
    assert GuestConfig.of(vllm_config(additional)) is None


def test_an_empty_mapping_serves_with_the_backends_of_vllm_in_its_order() -> None:
    config = of()
    assert config.grammar == tuple(f"guideway-vllm/vllm_{name}" for name in ("xgrammar", "guidance", "outlines"))
    assert (config.modifiers, config.worker_mixins, dict(config.options)) == ((), (), {})
    assert config.plugins == PluginSettings()


def test_an_empty_list_of_grammars_means_none() -> None:
    assert of(grammar=[]).grammar == ()


@pytest.mark.parametrize(
    ("device", "backend"), [("cpu", "guideway-cpu/cpu"), ("cuda", "guideway/torch"), ("tpu", "guideway/torch")]
)
def test_the_device_component_follows_the_device_unless_it_is_named(device: str, backend: str) -> None:
    found = GuestConfig.of(vllm_config({"guideway": {}}, device=device))
    named = GuestConfig.of(vllm_config({"guideway": {"device_backend": "mine"}}, device=device))
    assert found is not None
    assert named is not None
    assert (found.device_backend, named.device_backend) == (backend, "mine")


def test_what_is_given_arrives() -> None:
    config = of(
        grammar=["llguidance", "dist/xgrammar"],
        modifiers=["hello"],
        compile_threads=3,
        grammar_cache_bytes=0,
        refuse_within=0,
        options={"grammar.llguidance": {"limits": {"depth": 8}}, "grammar.xgrammar": {}},
        plugins={"deny": ["*/grammar.mine"]},
    )
    assert config.grammar == ("llguidance", "dist/xgrammar")
    assert config.modifiers == ("hello",)
    assert (config.compile_threads, config.grammar_cache_bytes, config.refuse_within) == (3, 0, 0)
    assert config.options["grammar.llguidance"]["limits"] == {"depth": 8}
    assert config.plugins.deny == ("*/grammar.mine",)


@pytest.mark.parametrize(
    ("given", "field", "said"),
    [
        ([], "guideway", "must be a mapping, {} for defaults, not []"),
        ({"gramar": ["x"]}, "gramar", "grammar"),
        ({"grammar": "llguidance"}, "grammar", "llguidance"),
        ({"grammar": ["a", "dist/a"]}, "grammar", "twice"),
        ({"grammar": [""]}, "grammar", "list of names"),
        ({"modifiers": [1]}, "modifiers", "modifiers"),
        ({"grammar_host": "thread"}, "grammar_host", "process"),
        ({"modifier_host": "thread"}, "modifier_host", "process"),
        ({"forced_tokens": "canonical"}, "forced_tokens", "exact"),
        ({"forced_tokens": "auto"}, "forced_tokens", "speculative_config"),
        ({"compile_threads": 0}, "compile_threads", "at least 1"),
        ({"compile_threads": True}, "compile_threads", "compile_threads"),
        ({"grammar_cache_bytes": -1}, "grammar_cache_bytes", "at least 0"),
        ({"refuse_within": -1}, "refuse_within", "at least 0"),
        ({"refuse_within": float("inf")}, "refuse_within", "at least 0"),
        ({"refuse_within": "soon"}, "refuse_within", "soon"),
        ({"options": {"grammar.a": {}}, "grammar": ["b"]}, "options.grammar.a", "does not use"),
        ({"options": ["grammar.a"]}, "options", "must map"),
        ({"plugins": ["x"]}, "plugins", "must be a mapping"),
        ({"plugins": {"denied": []}}, "denied", "deny"),
    ],
)
def test_what_is_wrong_is_refused_by_name(given: Any, field: str, said: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        GuestConfig.of(vllm_config({"guideway": given}))
    assert field in caught.value.field
    assert said in str(caught.value)


def test_worker_mixins_need_the_extension_of_the_worker_class() -> None:
    given = {"guideway": {"worker_mixins": ["timing"]}}
    assert GuestConfig.of(vllm_config(given, extension=EXTENSION)) is not None
    with pytest.raises(InvalidConfiguration, match=rf"timing.*--worker-extension-cls {EXTENSION}$"):
        GuestConfig.of(vllm_config(given))
    with pytest.raises(InvalidConfiguration, match=r"not 'mine\.Extension'"):
        GuestConfig.of(vllm_config(given, extension="mine.Extension"))


def test_a_configuration_does_not_change_with_what_it_was_made_from() -> None:
    options = {"grammar.a": {"words": ["x"]}}
    config = of(grammar=["a"], options=options)
    options["grammar.a"]["words"].append("y")
    assert config.options["grammar.a"]["words"] == ["x"]


@pytest.mark.parametrize(
    ("v2", "drafts", "said"),
    [
        (False, {}, "--no-async-scheduling"),
        (True, {"enable_adaptive_verification": True}, "enable_adaptive_verification"),
        (True, {"rejection_sample_method": "synthetic"}, "rejection_sample_method 'synthetic'"),
        (False, {"rejection_sample_method": "synthetic"}, "rejection_sample_method 'synthetic'"),
    ],
)
def test_drafts_are_refused_where_others_are_taken_than_guideway_judged(
    v2: bool, drafts: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=said) as caught:
        GuestConfig.of(vllm_config({"guideway": {}}, drafts=SimpleNamespace(**drafts), v2=v2))
    assert caught.value.field == "speculative_config"
    assert GuestConfig.of(vllm_config({"guideway": {}}, v2=v2)) is not None
    usual = SimpleNamespace(rejection_sample_method="standard", enable_adaptive_verification=False)
    assert GuestConfig.of(vllm_config({"guideway": {}}, drafts=usual, v2=True)) is not None


@pytest.mark.parametrize("key", ["guidway", "Guideway", "guide_way", "guideways"])
def test_a_slip_in_the_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidConfiguration, match=f"has a key '{key}'; did you mean 'guideway'") as caught:
        GuestConfig.of(vllm_config({key: {}}))
    assert caught.value.field == key


class Own(StockStrategy):
    name = "vllm_own"


def test_white_space_is_what_guideway_is_told_or_vllm() -> None:
    for flag, told, wanted in (
        (False, {}, "bounded"),
        (True, {}, "compact"),
        (True, {"whitespace": "spaced"}, "spaced"),
        (False, {"whitespace": "any"}, "any"),
    ):
        assert whitespace_of(GuestConfig(**told), SimpleNamespace(disable_any_whitespace=flag)) == wanted
    with pytest.raises(InvalidConfiguration, match="whitespace must be"):
        GuestConfig(whitespace="none")


def test_what_is_said_to_vllms_backends_alone_is_refused_beside_others() -> None:
    flag = "disable_additional_properties"
    flags = SimpleNamespace(**{flag: True})
    check_server([Own], flags)
    check_server([], flags)
    check_server([Own, ReferenceStrategy], SimpleNamespace(**{flag: False}))
    with pytest.raises(
        InvalidConfiguration, match=f"{flag} is for vLLM's own backends, and grammar.reference"
    ) as caught:
        check_server([Own, ReferenceStrategy], flags)
    assert caught.value.field == flag
