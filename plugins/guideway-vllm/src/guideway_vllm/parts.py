"""Parts shared by front end and engine core: plugins, vocabulary and the runtime."""

from __future__ import annotations

import inspect
import threading
import weakref
from typing import Any, Literal

from guideway.api import GrammarStrategy, InvalidConfiguration, ModifierContext, Need, Vocabulary, Whitespace
from guideway.api.reasoning import ReasoningConfig
from guideway.errors import text_of
from guideway.plugins import Plugins
from guideway.runtime import Runtime, RuntimePlan, build_vocabulary

from guideway_vllm.config import GuestConfig
from guideway_vllm.handover import load_shared_vocabulary
from guideway_vllm.reasoning import markers_of
from guideway_vllm.stock.server import Server, serving
from guideway_vllm.stock.strategy import StockStrategy

__all__ = ["OFFERS", "build_runtime", "check_server", "markers_for", "num_tokens_of", "whitespace_of"]

OFFERS = frozenset({Need.HIDDEN_STATES, Need.BITMASK, Need.HISTORY, Need.UNIFORM, Need.FEEDBACK})
"""Needs of modifiers that this guest can meet. vLLM cannot run companion sequences, and its worker finishes the
draw."""

_VOCABULARIES: weakref.WeakKeyDictionary[Any, Vocabulary] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def num_tokens_of(vllm_config: Any) -> int:
    """Return the size of the model's vocabulary."""
    return len(_vocabulary_of(vllm_config))


def _vocabulary_of(vllm_config: Any) -> Vocabulary:
    """Return the vocabulary of the model's tokenizer, built once per tokenizer and process, or taken from the front
    end."""
    with _LOCK:
        if (found := load_shared_vocabulary(vllm_config)) is not None:
            return found
        model = vllm_config.model_config
        tokenizer = _tokenizer(vllm_config)
        if tokenizer not in _VOCABULARIES:
            _VOCABULARIES[tokenizer] = build_vocabulary(
                _unwrap(tokenizer),
                logits_width=model.get_vocab_size(),
                stop_token_ids=_stop_token_ids(model),
            )
        return _VOCABULARIES[tokenizer]


def markers_for(parser_class: type[Any] | None, vllm_config: Any) -> tuple[ReasoningConfig, str]:
    """Return the markers of a reasoning parser, and the reason why constraints cannot be served after reasoning; empty
    if they can."""
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
    forced_tokens: Literal["auto", "exact", "off"] = "off",
) -> Runtime:
    """Build the runtime with the configured plugins. In the `front_end` it has the validators, and one slot for trials;
    in the engine core it has a slot for each sequence of all steps that vLLM computes concurrently."""
    strategies = [plugins.load("grammar", address) for address in config.grammar]
    check_server(strategies, vllm_config.structured_outputs_config)
    modifiers = [plugins.load("modifier", address) for address in config.modifiers]
    hooks = plugins.hooks()
    vocabulary = _vocabulary_of(vllm_config)
    slots = 1 if front_end else vllm_config.scheduler_config.max_num_seqs * vllm_config.max_concurrent_batches
    context = ModifierContext(
        vocabulary=vocabulary,
        max_num_sequences=slots,
        max_model_len=vllm_config.model_config.max_model_len + 1,  # vLLM refuses longer prompts itself
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
        fills=not front_end,
        on_unenforced=config.on_unenforced,
        whitespace=whitespace_of(config, vllm_config.structured_outputs_config),
        short_budget=config.short_budget,
        reasoning=reasoning or ReasoningConfig(),
        forced_tokens=forced_tokens,
        num_forced_tokens=vllm_config.num_speculative_tokens,
    )
    with serving(Server(vllm_config, _tokenizer(vllm_config))):
        return plan.build(hooks if front_end else None)


def can_sit_out(vllm_config: Any) -> bool:
    """Return whether the scheduler can leave a sequence out until its masks are ready. It preempts the sequence and
    drops its tokens, which needs vLLM 0.32, and the prefix cache, without which everything would be recomputed."""
    from vllm.v1.core.sched.scheduler import Scheduler

    preempt = getattr(Scheduler, "_preempt_request", None)
    can_drop = preempt is not None and "drop_stale_output" in inspect.signature(preempt).parameters
    can_wait = hasattr(Scheduler, "_handle_blocked_waiting_request")
    return can_drop and can_wait and bool(vllm_config.cache_config.enable_prefix_caching)


def check_server(strategies: list[type[GrammarStrategy]], structured_outputs: Any) -> None:
    """Refuse server settings for vLLM's own backends that other strategies ignore."""
    others = [cls.name for cls in strategies if not issubclass(cls, StockStrategy)]
    flag = "disable_additional_properties"
    if others and getattr(structured_outputs, flag, False):
        raise InvalidConfiguration(
            f"structured_outputs_config.{flag} is for vLLM's own backends, and grammar.{others[0]} does not know it; "
            "leave it out, and say it in the schema",
            field=flag,
        )


def whitespace_of(config: GuestConfig, structured_outputs: Any) -> Whitespace:
    """Return the white space of constraints that do not set it: guideway's setting, or vLLM's."""
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
    """Return the stop tokens of the model's generation configuration; the tokenizer has its own."""
    ids = model.try_get_generation_config().get("eos_token_id")
    if ids is None:
        return []
    return [ids] if isinstance(ids, int) else list(ids)


def _unwrap(tokenizer: Any) -> Any:
    """Return the tokenizer inside vLLM's wrapper around mistral_common, or the given one."""
    if type(tokenizer).__module__.startswith("vllm.tokenizers.mistral"):
        return tokenizer.tokenizer
    return tokenizer
