"""Choosing an attention backend, by name or automatically."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from guideway.api.attention import AttentionBackend
from guideway.errors import GuidewayError, PluginError, PluginNotFound, PluginUnavailable, text_of
from guideway.plugins.building import building
from guideway.plugins.index import PluginRecord
from guideway.plugins.manager import Plugins

__all__ = ["AUTO", "choose_attention"]

AUTO = "auto"

PREFERRED = {
    "cpu": ("guideway-engine/packed", "the quickest on a CPU, as it computes nothing for padding"),
    "": (
        "guideway-engine/sdpa",
        "one call for many sequences, which is what a GPU wants; only what has been run there is chosen",
    ),
}
"""Backend that ``auto`` chooses for a type of device, and the reason; the empty name is for all other devices."""

OURS = "guideway-engine"
"""Distribution whose backends are suggested if the chosen one cannot run a model. Backends of others run only if they
are selected."""


def choose_attention(
    name: str, device: torch.device, needs: frozenset[str], plugins: Plugins
) -> tuple[AttentionBackend, str]:
    """Return the backend `name`, or for ``auto`` the one for `device`, and the reason for the choice.

    `needs` are the capabilities that the model requires. Raises `PluginUnavailable` if the backend cannot run here,
    `PluginNotFound` if there is none of that name (both list the other backends and why some cannot run), and the
    errors of loading a plugin.
    """
    reason = "asked for by name"
    address = name
    if name == AUTO:
        address, why = PREFERRED.get(device.type, PREFERRED[""])
        reason = f"auto: {why}"
    try:
        backend = plugins.load("attention", address)
    except PluginNotFound as error:
        raise PluginNotFound(f"{error}\n{_others(device, needs, plugins)}", plugin=error.plugin) from None
    problem = _problem(backend, device, needs)
    if problem is not None:
        raise PluginUnavailable(
            f"attention {address!r} cannot run this model here: {problem}\n{_others(device, needs, plugins)}",
            plugin=f"attention.{backend.name}",
        )
    with building(f"attention.{backend.name}"):
        return backend(), reason


def _problem(backend: type[AttentionBackend], device: torch.device, needs: frozenset[str]) -> str | None:
    """Return why `backend` cannot run the model; None if it can."""
    with building(f"attention.{backend.name}"):
        reason = backend.available()
    if reason is not None:
        return reason
    if backend.devices and device.type not in backend.devices:
        return f"it runs on {', '.join(sorted(backend.devices))}, and the model is on {device.type}"
    if missing := sorted(needs - backend.capabilities):
        return f"it has no {', '.join(missing)}, which the model needs"
    return None


def _others(device: torch.device, needs: frozenset[str], plugins: Plugins) -> str:
    """Describe the other backends for an error message."""
    can: list[str] = [AUTO]
    cannot: list[str] = []
    for name, problem in _survey(device, needs, plugins):
        if problem is None:
            can.append(name)
        else:
            cannot.append(f"\n  {name} cannot run it: {problem}")
    strangers = [f"{r.distribution}/{r.name}" for r in _list_installed(plugins) if r.distribution != OURS]
    others = f"\n  not asked, as nobody chose them: {', '.join(strangers)}" if strangers else ""
    return f"those that can: {', '.join(can)}{''.join(cannot)}{others}"


def _survey(device: torch.device, needs: frozenset[str], plugins: Plugins) -> Iterator[tuple[str, str | None]]:
    """Yield the name of each of the engine's backends, and why it cannot run the model; None if it can."""
    for name in [record.name for record in _list_installed(plugins) if record.distribution == OURS]:
        try:
            yield name, _problem(plugins.load("attention", f"{OURS}/{name}"), device, needs)
        except (PluginError, GuidewayError) as error:
            yield name, text_of(error).splitlines()[0]


def _list_installed(plugins: Plugins) -> list[PluginRecord]:
    return [record for record in plugins.index.records if record.kind == "attention"]
