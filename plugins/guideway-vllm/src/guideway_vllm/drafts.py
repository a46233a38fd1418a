"""Forced tokens as drafts in vLLM without another drafter.

vLLM's V1 model runner verifies drafts only if it was built with a ``speculative_config``. The guest sets one with a
drafter that drafts nothing, and its scheduler replaces no drafts by forced tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from guideway.api import InvalidConfiguration

__all__ = ["NoDrafts", "are_ours", "around_create_speculative_config", "can_draft", "refuse"]

FIELD = "forced_tokens"
"""The setting that turns forced tokens on."""
METHOD, DRAFTER = "custom_class", f"{__name__}.NoDrafts"
MOST_FORCED = 8
"""Maximum number of forced tokens of a request in one step."""


class NoDrafts:
    """A drafter for vLLM that drafts nothing."""

    def __init__(self, vllm_config: Any) -> None:
        pass

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: there is no model."""

    def propose(self, sampled_token_ids: Sequence[Any], *args: Any, **kwargs: Any) -> list[list[int]]:
        """Return no drafts for each request."""
        return [[] for _ in sampled_token_ids]


def are_ours(speculative: Any) -> bool:
    """Return whether a ``speculative_config`` of vLLM is the one for forced tokens alone."""
    return speculative is not None and speculative.method == METHOD and speculative.model == DRAFTER


def can_draft(vllm_config: Any) -> bool:
    """Return whether the scheduler can provide drafts. V1 verifies drafts named by the scheduler unless a model drafted
    them with its own probabilities. In V2 drafts never leave the device."""
    speculative = vllm_config.speculative_config
    return (
        speculative is not None
        and (speculative.method == "ngram" or are_ours(speculative))
        and not vllm_config.use_v2_model_runner
        and not vllm_config.scheduler_config.async_scheduling
    )


def refuse(why: str) -> InvalidConfiguration:
    """Return the error for a server that cannot use forced tokens."""
    return InvalidConfiguration(f'{FIELD} is not "off", but {why}, or {FIELD}', field=FIELD)


def around_create_speculative_config(create: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement for ``EngineArgs.create_speculative_config`` that creates one for forced tokens if the
    operator asks for them and for no other drafts. Raises `InvalidConfiguration` where vLLM could not use it."""

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        speculative = create(self, *args, **kwargs)
        given = self.additional_config.get("guideway") if isinstance(self.additional_config, Mapping) else None
        if speculative is not None or not isinstance(given, Mapping) or given.get(FIELD) not in ("auto", "exact"):
            return speculative  # drafts of another kind are refused with the other settings
        from vllm import envs

        if envs.VLLM_USE_V2_MODEL_RUNNER:
            raise refuse("vLLM's V2 model runner takes no drafts from the scheduler; unset VLLM_USE_V2_MODEL_RUNNER")
        if self.async_scheduling:
            raise refuse("with asynchronous scheduling tokens are not known yet; leave out --async-scheduling")
        self.speculative_config = {"method": METHOD, "model": DRAFTER, "num_speculative_tokens": MOST_FORCED}
        return create(self, *args, **kwargs)

    return wrapped
