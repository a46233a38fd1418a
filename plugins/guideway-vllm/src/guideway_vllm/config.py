"""The choices of the operator: ``additional_config["guideway"]`` of vLLM, with the keys of guideway's own
configuration."""

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

__all__ = ["KEY", "GuestConfig"]

KEY = "guideway"
STOCK = tuple(f"guideway-vllm/vllm_{name}" for name in ("xgrammar", "guidance", "outlines"))
WHERE = f'additional_config["{KEY}"]'
KIND_OF = {"grammar": "grammar", "modifiers": "modifier", "worker_mixins": "worker", "device_backend": "device"}
"""The fields that choose components which take options, and the kind of each."""

TABLES: dict[str, Any] = {"limits": Limits, "plugins": PluginSettings}
"""The fields that are settings themselves."""


@dataclass(frozen=True, kw_only=True)
class GuestConfig:
    """Raises `InvalidConfiguration`, naming the field."""

    grammar: Names = STOCK
    """Grammar strategies, in order of preference; empty: no constraints. By default vLLM's own backends, in the
    order in which vLLM tries them."""
    modifiers: Names = ()
    """Logit modifiers that requests may use, in the order in which those of one stage act, after the grammar mask."""
    worker_mixins: Names = ()
    """Worker mixins, in the order their methods are called."""
    device_backend: str | None = None
    """The device component that applies masks and modifiers; None: ``guideway-cpu/cpu`` on a CPU, else
    ``guideway/torch``, whoever else offers devices of these names."""
    grammar_host: Literal["inline", "process"] = "process"
    """The place where grammar strategies compile and fill: in grammar hosts, or in vLLM's own processes, where those of
    vLLM itself always are."""
    modifier_host: Literal["inline", "process"] = "inline"
    """The place where modifiers keep their states: in modifier hosts, or in vLLM's own processes."""
    isolate_tenants: bool = False
    """True if requests of one tenant use neither prefixes nor grammars that were computed for another: the tenant is
    part of the request's ``cache_salt``."""
    host_environment: Names = ()
    """Environment variables that hosts are given beside the usual ones, as patterns: ``LMFE_*``."""
    compile_threads: Annotated[int, Range(1)] = 2
    """The number of constraints that compile at once, in the front end and in the engine core each."""
    grammar_cache_bytes: Annotated[int, Range(0)] = 512 << 20
    """The bytes of memory that finished grammars may keep for reuse, in either."""
    whitespace: Whitespace | None = None
    """White space between JSON tokens where a request does not say; None: ``compact`` in a server with
    ``disable_any_whitespace``, else ``bounded``."""
    short_budget: Literal["refuse", "cut"] = "cut"
    """The policy where no output of a constraint fits into a request's tokens: ``refuse`` it, or have it ``cut``, which
    names `closing` as not enforced: completions that do not say have 16 in vLLM."""
    on_unenforced: OnUnenforced = "report"
    """The policy for a constraint that cannot be enforced in full, where a request does not say."""
    strict_refuses: bool = False
    """True if ``strict: true`` of a request's ``response_format`` is ``on_unenforced="refuse"``, where the request does
    not say that itself."""
    refuse_within: Annotated[float, Range(0), math.isfinite, "a number of seconds of at least 0"] = 2.0
    """For how many seconds at most the front end waits for a constraint to compile, so that a wrong one is refused
    with status 400; one that takes longer goes on to the engine, where only its own request can fail."""
    limits: Limits = field(default_factory=Limits)
    """Limits of what the work of plugins may cost."""
    options: Options = field(default_factory=dict, hash=False)
    """Options of components by ``kind.name``."""
    plugins: PluginSettings = field(default_factory=PluginSettings)
    """The plugins that may run, and the hooks that do."""

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def of(cls, vllm_config: Any) -> GuestConfig | None:
        """That of a ``VllmConfig``; None if it has no such key, and guideway leaves everything to vLLM."""
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
        return config

    def plan(self, plugins: Plugins) -> PluginPlan:
        """Make the plan that every process of the server has to agree on."""
        selection = [("device", str(self.device_backend))]
        selection += [("grammar", address) for address in self.grammar]
        selection += [("modifier", address) for address in self.modifiers]
        selection += [("worker", address) for address in self.worker_mixins]
        options = {component: dict(options) for component, options in self.options.items()}
        return plugins.plan(selection, {"options": options})

    def _check_extension(self, vllm_config: Any) -> None:
        """Worker mixins are called through vLLM's own mixin of the worker class."""
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
    """Refuse what takes other drafts than those guideway has judged."""
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
