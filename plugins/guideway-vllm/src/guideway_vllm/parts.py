"""The parts that front end and engine core are built from: plugins, vocabulary and the runtime over them."""

from __future__ import annotations

import inspect
import threading
import weakref
from typing import Any

from guideway.api import GrammarStrategy, InvalidConfiguration, ModifierContext, Need, Vocabulary, Whitespace
from guideway.api.reasoning import ReasoningConfig
from guideway.errors import text_of
from guideway.plugins import Plugins
from guideway.runtime import Runtime, RuntimePlan, build_vocabulary

from guideway_vllm.config import GuestConfig
from guideway_vllm.handover import size_taken_over, taken_over
from guideway_vllm.reasoning import markers_of
from guideway_vllm.stock.server import Server, serving
from guideway_vllm.stock.strategy import StockStrategy

__all__ = ["OFFERS", "build_runtime", "check_server", "markers_for", "num_tokens_of", "whitespace_of"]

OFFERS = frozenset({Need.HIDDEN_STATES, Need.BITMASK, Need.HISTORY, Need.UNIFORM, Need.FEEDBACK})
"""The needs of a modifier that can be met here. vLLM runs no sequence beside another one's, and the draw ends in its
worker."""

_VOCABULARIES: weakref.WeakKeyDictionary[Any, Vocabulary] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def num_tokens_of(vllm_config: Any) -> int:
    """The size of the vocabulary of the model's tokenizer, which is not loaded if a front end has told it."""
    return size_taken_over(vllm_config) or len(_vocabulary_of(vllm_config))


def _vocabulary_of(vllm_config: Any) -> Vocabulary:
    """The vocabulary of the model's tokenizer, built once for each tokenizer in a process, and in an engine core not at
    all if its front end has handed it over."""
    with _LOCK:
        if (found := taken_over(vllm_config)) is not None:
            return found
        model = vllm_config.model_config
        tokenizer = _tokenizer(vllm_config)
        if tokenizer not in _VOCABULARIES:
            _VOCABULARIES[tokenizer] = build_vocabulary(
                _unwrapped(tokenizer),
                logits_width=model.get_vocab_size(),
                stop_token_ids=_stop_token_ids(model),
            )
        return _VOCABULARIES[tokenizer]


def markers_for(parser_class: type[Any] | None, vllm_config: Any) -> tuple[ReasoningConfig, str]:
    """Return the markers of a reasoning parser, and why constraints cannot be served where reasoning may come before
    them; empty: they can."""
    if parser_class is None:
        return ReasoningConfig(), ""
    try:
        found = markers_of(parser_class, _tokenizer(vllm_config), _vocabulary_of(vllm_config))
        why = "" if found.has_marker else "it names no marker of the end"
    except Exception as error:
        found, why = ReasoningConfig(), text_of(error)
    return found, why and (
        f"where a constraint begins is not known with the reasoning parser {parser_class.__name__}: {why}; turn "
        "thinking off for this request, or start the server with another parser, or with "
        "structured_outputs_config.enable_in_reasoning"
    )


def build_runtime(
    config: GuestConfig,
    plugins: Plugins,
    vllm_config: Any,
    *,
    front_end: bool,
    reasoning: ReasoningConfig | None = None,
) -> Runtime:
    """The runtime over the configured plugins. That of the `front_end` has the validators, which see each request
    once, and a place for one sequence, to try a request in; that of the engine core has one for each sequence that may
    run in each of the steps vLLM computes at once."""
    strategies = [plugins.load("grammar", address) for address in config.grammar]
    check_server(strategies, vllm_config.structured_outputs_config)
    modifiers = [plugins.load("modifier", address) for address in config.modifiers]
    hooks = plugins.hooks()
    vocabulary = _vocabulary_of(vllm_config)
    slots = 1 if front_end else vllm_config.scheduler_config.max_num_seqs * vllm_config.max_concurrent_batches
    context = ModifierContext(
        vocabulary=vocabulary,
        max_num_sequences=slots,
        max_model_len=vllm_config.model_config.max_model_len + 1,  # vLLM itself refuses longer prompts
    )
    plan = RuntimePlan(
        context=context,
        strategies=strategies,
        modifiers=modifiers,
        options=config.options,
        offers=OFFERS,
        model=str(vllm_config.model_config.served_model_name or vllm_config.model_config.model),
        cache_bytes=config.grammar_cache_bytes,
        compile_threads=config.compile_threads,
        grammar_host=config.grammar_host,
        modifier_host=config.modifier_host,
        host_environment=config.host_environment,
        isolate_tenants=config.isolate_tenants,
        limits=config.limits,
        sits_out=not front_end and can_sit_out(vllm_config),
        on_unenforced=config.on_unenforced,
        whitespace=whitespace_of(config, vllm_config.structured_outputs_config),
        short_budget=config.short_budget,
        reasoning=reasoning or ReasoningConfig(),
    )
    with serving(Server(vllm_config, _tokenizer(vllm_config))):
        return plan.build(hooks if front_end else None)


def can_sit_out(vllm_config: Any) -> bool:
    """Return whether the scheduler can leave a sequence out until its masks are ready: it preempts it and drops what is
    drawn meanwhile, which vLLM can since 0.32, and without its prefix cache would compute the whole of it anew each
    time."""
    from vllm.v1.core.sched.scheduler import Scheduler

    preempt = getattr(Scheduler, "_preempt_request", None)
    can_drop = preempt is not None and "drop_stale_output" in inspect.signature(preempt).parameters
    can_wait = hasattr(Scheduler, "_handle_blocked_waiting_request")
    return can_drop and can_wait and bool(vllm_config.cache_config.enable_prefix_caching)


def check_server(strategies: list[type[GrammarStrategy]], structured_outputs: Any) -> None:
    """Refuse what the server is told about vLLM's own backends and other strategies do not know."""
    others = [cls.name for cls in strategies if not issubclass(cls, StockStrategy)]
    flag = "disable_additional_properties"
    if others and getattr(structured_outputs, flag, False):
        raise InvalidConfiguration(
            f"structured_outputs_config.{flag} is for vLLM's own backends, and grammar.{others[0]} does not know it; "
            "leave it out, and say it in the schema",
            field=flag,
        )


def whitespace_of(config: GuestConfig, structured_outputs: Any) -> Whitespace:
    """The white space of constraints that do not say: what the operator told guideway, or else vLLM."""
    if config.whitespace is not None:
        return config.whitespace
    return "compact" if getattr(structured_outputs, "disable_any_whitespace", False) else "bounded"


def _tokenizer(vllm_config: Any) -> Any:
    from vllm.tokenizers import cached_tokenizer_from_config

    model = vllm_config.model_config
    if model.skip_tokenizer_init:
        raise InvalidConfiguration(
            "guideway needs the model's tokenizer, so vLLM cannot run with skip_tokenizer_init", field="guideway"
        )
    return cached_tokenizer_from_config(model_config=model)


def _stop_token_ids(model: Any) -> list[int]:
    """Those of the model's generation configuration, beside the tokenizer's own end-of-text token."""
    ids = model.try_get_generation_config().get("eos_token_id")
    if ids is None:
        return []
    return [ids] if isinstance(ids, int) else list(ids)


def _unwrapped(tokenizer: Any) -> Any:
    """The tokenizer inside vLLM's wrapper around mistral_common, or what was given."""
    if type(tokenizer).__module__.startswith("vllm.tokenizers.mistral"):
        return tokenizer.tokenizer
    return tokenizer
