"""Validators, observers and their order."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from guideway.errors import InvalidRequest, PluginLoadError, PluginNotFound
from guideway.plugins import PluginIndex, Plugins, PluginSettings

pytestmark = pytest.mark.usefixtures("fresh")


def hooks(index: PluginIndex, *enable: str) -> Any:
    return Plugins(index, PluginSettings(enable=enable)).hooks()


def test_nothing_acts_unless_enabled(index: PluginIndex) -> None:
    none = hooks(index)
    assert not any(getattr(none, name) for name in none.__slots__)
    assert not [name for name in sys.modules if name.startswith("gwt_")]


@pytest.mark.parametrize("enable", [("first", "second"), ("second", "gwt-hooks/first")])
def test_they_are_called_in_the_order_they_are_enabled(index: PluginIndex, enable: tuple[str, ...]) -> None:
    ids = [hook.plugin for hook in hooks(index, *enable).validate_request]
    assert ids == [f"gwt-hooks/hooks.{name.removeprefix('gwt-hooks/')}" for name in enable]


def test_who_asks_to_be_first_is(index: PluginIndex) -> None:
    ids = [hook.plugin for hook in hooks(index, "first", "second", "eager").validate_request]
    assert [plugin.rpartition(".")[2] for plugin in ids] == ["eager", "first", "second"]


def test_a_module_behind_two_entries_is_called_once(index: PluginIndex) -> None:
    ids = [hook.plugin for hook in hooks(index, "alias", "second", "first").validate_request]
    assert [plugin.rpartition(".")[2] for plugin in ids] == ["alias", "second"]


def test_a_hook_takes_the_arguments_it_wants(index: PluginIndex) -> None:
    enabled = hooks(index, "first")
    (validate,), (finished,) = enabled.validate_request, enabled.request_finished
    validate(request="good", context=None)
    with pytest.raises(InvalidRequest):
        validate(request="bad", context=None)
    finished(request="r", result="s")
    assert sys.modules["gwt_hooks_first"].heard == ["first", "first", ("r", "s")]
    assert enabled.request_started == enabled.request_failed == ()


def test_they_are_taken_once(index: PluginIndex) -> None:
    plugins = Plugins(index, PluginSettings(enable=("first",)))
    assert plugins.hooks() is plugins.hooks()


def test_an_enabled_plugin_that_is_broken_fails_loudly(index: PluginIndex) -> None:
    with pytest.raises(PluginLoadError, match="wrapper"):
        hooks(index, "first", "wrapper")
    with pytest.raises(PluginNotFound, match="did you mean 'second'"):
        hooks(index, "secnd")
