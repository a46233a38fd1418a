"""Logits processors as people have them, and the interface of vLLM's per-request ones."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, MinLengthLogitsProcessor, NoRepeatNGramLogitsProcessor

Row = Callable[..., Tensor]

EOS = 2


def favored(token_ids: Sequence[int]) -> int:
    """The token `favor` raises."""
    return 4 + sum(token_ids) % 100


def favor(token_ids: list[int], logits: Tensor) -> Tensor:
    """Stateless, out of place."""
    assert logits.dtype == torch.float32
    bonus = torch.zeros_like(logits)
    bonus[favored(token_ids)] = 100.0
    return logits + bonus


def forbid(token_id: int) -> Row:
    """Makes a stateless callable that works in place."""

    def ban(token_ids: list[int], logits: Tensor) -> Tensor:
        logits[token_id] = -torch.inf
        return logits

    return ban


class Countdown:
    """Remembers: its n-th call forces token ``first + n``. Counts what is made and called."""

    made = 0
    calls = 0

    def __init__(self, first: int = 10) -> None:
        type(self).made += 1
        self.next = first

    def __call__(self, token_ids: list[int], logits: Tensor) -> Tensor:
        type(self).calls += 1
        forced = torch.full_like(logits, -torch.inf)
        forced[self.next] = 0.0
        self.next += 1
        return forced


class Twice(LogitsProcessor):  # type: ignore[misc]
    """A `transformers` processor that remembers: every other call forces token 5, the others token 6."""

    def __init__(self) -> None:
        self.odd = False

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.odd = not self.odd
        forced = torch.full_like(scores, -torch.inf)
        forced[:, 5 if self.odd else 6] = 0.0
        return forced


class Seen(LogitsProcessor):  # type: ignore[misc]
    """Remembers in a list, where only a look inside tells."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.seen.append(int(input_ids[0, -1]))
        return scores


MEMBERS = LogitsProcessorList([NoRepeatNGramLogitsProcessor(2), MinLengthLogitsProcessor(30, EOS, device="cpu")])


def explode_after(token_ids: list[int], logits: Tensor) -> Tensor:
    """Fails for a sequence that begins with token 7, from its third generated token on."""
    if token_ids[0] == 7 and len(token_ids) > 5:
        raise RuntimeError("seven")
    return logits


def narrow(token_ids: list[int], logits: Tensor) -> Tensor:
    return logits[:-1]


def wide(token_ids: list[int], logits: Tensor) -> Tensor:
    return logits.double()


def nothing(token_ids: list[int], logits: Tensor) -> None:
    logits[0] = 0.0


def not_numbers(token_ids: list[int], logits: Tensor) -> Tensor:
    return logits * torch.nan


def reviving(token_ids: list[int], logits: Tensor) -> Tensor:
    return torch.nan_to_num(logits, neginf=50.0)


class AdapterLogitsProcessor(ABC):
    """The documented interface of ``vllm.v1.sample.logits_processor.AdapterLogitsProcessor``, without vLLM."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.req_info: dict[int, partial[Tensor]] = {}

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:  # noqa: ARG003 - as it is in vLLM
        return None

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        raise NotImplementedError

    @abstractmethod
    def new_req_logits_processor(self, params: Any) -> Row | None:
        raise NotImplementedError

    def _new_state(self, params: Any, prompt_ids: list[int] | None, output_ids: list[int]) -> partial[Tensor] | None:
        if req_lp := self.new_req_logits_processor(params):
            args = [prompt_ids, output_ids] if len(inspect.signature(req_lp).parameters) == 3 else [output_ids]
            return partial(req_lp, *args)
        return None

    def update_state(self, batch_update: Any) -> None:
        raise NotImplementedError("vLLM's batch bookkeeping; no host but vLLM calls it")

    def apply(self, logits: Tensor) -> Tensor:
        for req_idx, req_lp in self.req_info.items():
            req_logits = logits[req_idx]
            new_logits = req_lp(req_logits)
            if new_logits is not req_logits:
                logits[req_idx] = new_logits
        return logits


class ForceToken:
    """As in vLLM's documentation: forces one token, unless it was generated `limit` times."""

    def __init__(self, target: int, limit: int) -> None:
        self.target = target
        self.limit = limit

    def __call__(self, output_ids: list[int], logits: Tensor) -> Tensor:
        if output_ids.count(self.target) < self.limit:
            kept = logits[self.target].item()
            logits[:] = -torch.inf
            logits[self.target] = kept
        return logits


def echo_prompt(prompt_ids: list[int], output_ids: list[int], logits: Tensor) -> Tensor:
    """Forces the prompt once more."""
    if len(output_ids) < len(prompt_ids):
        forced = torch.full_like(logits, -torch.inf)
        forced[prompt_ids[len(output_ids)]] = 0.0
        return forced
    return logits


class PerRequest(AdapterLogitsProcessor):
    """A per-request processor of both arities."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        target = sampling_params.extra_args.get("target_token")
        if target is not None and not isinstance(target, int):
            raise ValueError(f"target_token value {target} is not int")

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Row | None:
        if params.extra_args.get("echo"):
            return echo_prompt
        target = params.extra_args.get("target_token")
        return None if target is None else ForceToken(target, params.extra_args.get("limit", 3))


class Curious(PerRequest):
    """Reads a sampling parameter that guideway has not."""

    def new_req_logits_processor(self, params: Any) -> Row | None:
        return forbid(params.n_beams)


class Invariant(PerRequest):
    def is_argmax_invariant(self) -> bool:
        return True


class BatchLevel:
    """The batch-level V1 interface."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.rows: dict[int, int] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        return None

    def apply(self, logits: Tensor) -> Tensor:
        return logits
