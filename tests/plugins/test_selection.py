"""Resolving names to records, and the operator's globs."""

from __future__ import annotations

import pytest
from guideway.errors import InvalidConfiguration, PluginConflict, PluginNotFound, PluginUnavailable
from guideway.plugins import PluginIndex, PluginRecord, Plugins, PluginSettings


def record(kind: str, name: str, distribution: str, version: str = "1") -> PluginRecord:
    return PluginRecord(kind, name, f"{distribution}_module", distribution, version, f"site-of-{distribution}")


INDEX = PluginIndex(
    records=(
        record("grammar", "alpha", "dist-a"),
        record("grammar", "beta", "dist-a"),
        record("grammar", "beta", "dist-b", "2"),
        record("device", "gamma", "dist-b", "2"),
    ),
    foreign=(PluginRecord("grammar", "omega", "m", "dist-c", "3", "there", group="guideway.v2"),),
    shadowed=(record("grammar", "hidden", "dist-d"),),
)


@pytest.mark.parametrize("address", ["alpha", "dist-a/alpha", "Dist_A/alpha", "grammar.alpha", "dist.a/grammar.alpha"])
def test_addresses(address: str) -> None:
    assert Plugins(INDEX).resolve("grammar", address).id == "dist-a/grammar.alpha"


def test_a_name_claimed_twice_is_an_error_only_when_used() -> None:
    plugins = Plugins(INDEX)
    assert plugins.resolve("grammar", "alpha")
    with pytest.raises(PluginConflict) as caught:
        plugins.resolve("grammar", "beta")
    for part in ("dist-a", "dist-b", "site-of-dist-a", "site-of-dist-b", "'dist-a/beta'", "'dist-b/beta'"):
        assert part in str(caught.value)
    assert caught.value.plugin == "grammar.beta"
    assert plugins.resolve("grammar", "dist-b/beta").distribution == "dist-b"


def test_denying_one_claimant_settles_a_conflict() -> None:
    plugins = Plugins(INDEX, PluginSettings(deny=("dist-a/*",)))
    assert plugins.resolve("grammar", "beta").distribution == "dist-b"


@pytest.mark.parametrize(
    ("kind", "address", "told"),
    [
        ("grammar", "alpa", ["did you mean 'alpha'?", "installed: alpha, beta"]),
        ("grammar", "gamma", ["dist-b 2 offers device.gamma"]),
        ("grammar", "omega", ["dist-c 3 offers it for contract v2", "this guideway has contract 1."]),
        ("grammar", "hidden", ["dist-d 1 at site-of-dist-d", "hides", "doctor"]),
        ("grammar", "dist-b/alpha", ["in distribution 'dist-b'", "write 'dist-a/alpha'"]),
        ("worker", "alpha", ["installed: no worker at all", "offers grammar.alpha"]),
        ("hooks", "alpha", ["no hooks plugin named 'alpha' is installed"]),
        ("gramar", "alpha", ["no kind of plugin 'gramar'", "grammar, device"]),
    ],
)
def test_an_unknown_name_says_where_it_went(kind: str, address: str, told: list[str]) -> None:
    with pytest.raises(PluginNotFound) as caught:
        Plugins(INDEX).resolve(kind, address)
    for part in told:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (PluginSettings(deny=("dist-*/grammar.*",)), "deny has 'dist-*/grammar.*'"),
        (PluginSettings(allow=("*",), deny=("*",)), "deny has '*'"),
        (PluginSettings(allow=("dist-a/*",), deny=("Dist_A/*.alpha",)), "deny has 'Dist_A/*.alpha'"),
        (PluginSettings(allow=("*/device.*",)), "allow has no glob that matches it (it has '*/device.*')"),
        (PluginSettings(allow=()), "(it has nothing)"),
    ],
)
def test_what_is_denied_may_not_run(settings: PluginSettings, told: str) -> None:
    plugins = Plugins(INDEX, settings)
    with pytest.raises(PluginUnavailable) as caught:
        plugins.resolve("grammar", "alpha")
    assert told in str(caught.value) and "dist-a/grammar.alpha 1 at site-of-dist-a" in str(caught.value)
    assert plugins.state(INDEX.records[0])[0] == "denied"


def test_allow_lets_through_what_it_matches() -> None:
    plugins = Plugins(INDEX, PluginSettings(allow=("dist_a/*", "*/device.gamma")))
    assert plugins.resolve("grammar", "beta").distribution == "dist-a"
    assert plugins.resolve("device", "gamma")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("deny", ("grammar.alpha",)),
        ("allow", ("dist-a",)),
        ("deny", "dist-a/*"),
        ("enable", (1,)),
        ("require", "certain"),
    ],
)
def test_settings_that_could_have_no_effect_are_refused(option: str, value: object) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        PluginSettings(**{option: value})  # type: ignore[arg-type]
    assert caught.value.field == f"plugins.{option}"


def test_states_without_loading_anything() -> None:
    states = {r.id: Plugins(INDEX).state(r) for r in INDEX.records}
    assert states["dist-a/grammar.alpha"] == ("discovered", "")
    assert states["dist-a/grammar.beta"] == ("conflict", "also claimed by dist-b; write 'dist-a/beta'")
