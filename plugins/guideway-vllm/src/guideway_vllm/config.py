"""The operator's settings: ``additional_config["guideway"]`` of vLLM, with the keys of guideway's own configuration."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from guideway.api import InvalidConfiguration, OnUnenforced, Whitespace, parse_options
from guideway.api.options import Range, check_fields
from guideway.plugins import PluginPlan, Plugins, PluginSettings
from guideway.plugins.configuration import Names, Options, freeze_components
from guideway.plugins.limits import Limits

from guideway_vllm import drafts

__all__ = ["KEY", "GuestConfig"]

KEY = "guideway"
STOCK = tuple(f"guideway-vllm/vllm_{name}" for name in ("xgrammar", "guidance", "outlines"))
WHERE = f'additional_config["{KEY}"]'
KIND_OF = {"grammar": "grammar", "modifiers": "modifier", "worker_mixins": "worker", "device_backend": "device"}
"""Fields that choose components with options, and the kind of each."""

TABLES: dict[str, Any] = {"limits": Limits, "plugins": PluginSettings}
"""Fields that are nested settings."""


@dataclass(frozen=True, kw_only=True)
class GuestConfig:
    """guideway's settings in vLLM. Raises `InvalidConfiguration`, naming the field."""

    grammar: Names = STOCK
    """Grammar strategies, in order of preference; empty: no constraints. By default vLLM's own backends, in the order
    in which vLLM tries them."""
    modifiers: Names = ()
    """Logit modifiers that requests may use. Within a stage they act in this order, after the grammar mask."""
    worker_mixins: Names = ()
    """Worker mixins, in the order in which their methods are called."""
    device_backend: str | None = None
    """The device component that applies masks and modifiers; None: ``guideway-cpu/cpu`` on a CPU, else
    ``guideway/torch``, even if other packages offer devices of these names."""
    grammar_host: Literal["auto", "inline", "process"] = "auto"
    """Process in which grammar strategies compile and fill: grammar hosts, or vLLM's own processes; ``auto`` is grammar
    hosts where they can be used. vLLM's own backends always run in vLLM's processes."""
    forced_tokens: Literal["auto", "exact", "off"] = "off"
    """Forced tokens of constraints as drafts, without another drafter: ``exact``, ``auto`` (where that pays), or
    ``off``. Only in vLLM's V1 model runner, and without asynchronous scheduling."""
    modifier_host: Literal["inline", "process"] = "inline"
    """Process in which modifiers keep their states: modifier hosts, or vLLM's own processes."""
    isolate_tenants: bool = False
    """True if tenants share neither prefixes nor compiled grammars. The tenant becomes part of the request's
    ``cache_salt``."""
    host_environment: Names = ()
    """Patterns of extra environment variables to pass to hosts, such as ``LMFE_*``."""
    compile_threads: Annotated[int, Range(1)] = 2
    """Constraints that compile at once, in the front end and in the engine core each."""
    grammar_cache_bytes: Annotated[int, Range(0)] = 512 << 20
    """Bytes of compiled grammars to cache, in the front end and in the engine core each."""
    whitespace: Whitespace | None = None
    """White space between JSON tokens, for requests that do not set it; None: ``compact`` in a server with
    ``disable_any_whitespace``, else ``bounded``."""
    short_budget: Literal["refuse", "cut"] = "cut"
    """Policy for a token budget that is too small for the constraint: ``refuse`` the request, or ``cut`` the output and
    report `closing` as not enforced. Completions without ``max_tokens`` have 16 in vLLM."""
    on_unenforced: OnUnenforced = "report"
    """Policy for constraints that cannot be enforced in full, for requests that do not set it."""
    strict_refuses: bool = False
    """True if ``strict: true`` in a request's ``response_format`` means ``on_unenforced="refuse"``, unless the request
    sets that itself."""
    refuse_within: Annotated[float, Range(0), math.isfinite, "a number of seconds of at least 0"] = 2.0
    """Most seconds that the front end waits for a constraint to compile, in order to refuse a wrong one with status
    400. A constraint that takes longer is passed to the engine, where an error ends only its own request."""
    limits: Limits = field(default_factory=Limits)
    """Limits on the work of plugins."""
    options: Options = field(default_factory=dict, hash=False)
    """Options of components by ``kind.name``."""
    plugins: PluginSettings = field(default_factory=PluginSettings)
    """Plugins that may run, and hooks that are enabled."""

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def of(cls, vllm_config: Any) -> GuestConfig | None:
        """Return the settings of a ``VllmConfig``; None if it has no such key, so that guideway is off."""
        additional = vllm_config.additional_config
        if not isinstance(additional, Mapping):
            return None
        if KEY not in additional:
            if slips := difflib.get_close_matches(KEY, [key for key in additional if isinstance(key, str)], cutoff=0.8):
                raise InvalidConfiguration(
                    f"additional_config has a key {slips[0]!r}; did you mean {KEY!r}?", field=slips[0]
                )
            return None
        given = additional[KEY]
        if not isinstance(given, Mapping):
            raise InvalidConfiguration(f"{WHERE} must be a mapping, {{}} for defaults, not {given!r}", field=KEY)
        given = dict(given)
        for name in ("options", *TABLES):
            if not isinstance(given.get(name, {}), Mapping):
                what = "map 'kind.name' to the component's options" if name == "options" else "be a mapping of settings"
                raise InvalidConfiguration(f"{WHERE}.{name} must {what}, not {given[name]!r}", field=name)
        for table, settings in TABLES.items():
            if table in given:
                given[table] = parse_options(settings, given[table], where=f"{WHERE}.{table}")
        config = parse_options(cls, given, where=WHERE)
        if config.device_backend is None:
            backend = "guideway-cpu/cpu" if vllm_config.device_config.device_type == "cpu" else "guideway/torch"
            object.__setattr__(config, "device_backend", backend)
        freeze_components(config, KIND_OF)
        config._check_extension(vllm_config)
        _check_drafts(vllm_config)
        config._check_forced(vllm_config)
        return config

    def plan(self, plugins: Plugins) -> PluginPlan:
        """Return the plan that every process of the server must share."""
        selection = [("device", str(self.device_backend))]
        selection += [("grammar", address) for address in self.grammar]
        selection += [("modifier", address) for address in self.modifiers]
        selection += [("worker", address) for address in self.worker_mixins]
        options = {component: dict(options) for component, options in self.options.items()}
        return plugins.plan(selection, {"options": options})

    def _check_forced(self, vllm_config: Any) -> None:
        """Check that vLLM verifies the drafts of the guest, and no others."""
        if self.forced_tokens == "off":
            return
        if not drafts.are_ours(vllm_config.speculative_config):
            raise drafts.refuse("speculative_config is set, and vLLM takes one kind of drafts; leave out one of them")
        if vllm_config.use_v2_model_runner:
            raise drafts.refuse("this server needs vLLM's V2 model runner, which takes no drafts from the scheduler")

    def _check_extension(self, vllm_config: Any) -> None:
        """Check that vLLM loads the worker extension through which mixins are called."""
        extension = "guideway_vllm.worker.WorkerExtension"
        given = vllm_config.parallel_config.worker_extension_cls
        if self.worker_mixins and given != extension:
            other = f", not {given!r}: of worker extensions vLLM takes one" if given else ""
            raise InvalidConfiguration(
                f"{WHERE} has worker_mixins ({', '.join(self.worker_mixins)}), which need --worker-extension-cls "
                f"{extension}{other}",
                field="worker_mixins",
            )


def _check_drafts(vllm_config: Any) -> None:
    """Refuse settings under which vLLM verifies other drafts than guideway has checked."""
    speculative, why = vllm_config.speculative_config, ""
    if speculative is None:
        return
    if getattr(speculative, "rejection_sample_method", None) == "synthetic":
        why = "with rejection_sample_method 'synthetic' vLLM takes drafts whatever they are; choose another method"
    elif getattr(vllm_config, "use_v2_model_runner", False):
        if getattr(speculative, "enable_adaptive_verification", False):
            why = (
                "with enable_adaptive_verification vLLM chooses on the device which drafts it verifies, and guideway's "
                "masks cannot follow; leave it out"
            )
    elif vllm_config.scheduler_config.async_scheduling:
        why = (
            "with asynchronous scheduling vLLM's V1 model runner verifies drafts that guideway has cut; start the "
            "server with --no-async-scheduling, or without speculative decoding"
        )
    if why:
        raise InvalidConfiguration(why, field="speculative_config")
