"""Logits processors in the usual forms, and the interface of vLLM's per-request ones."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, MinLengthLogitsProcessor, NoRepeatNGramLogitsProcessor

Row = Callable[..., Tensor]

EOS = 2


def favored_token(token_ids: Sequence[int]) -> int:
    """Return the token that `favor` raises."""
    return 4 + sum(token_ids) % 100


def favor(token_ids: list[int], logits: Tensor) -> Tensor:
    """Raise one token's logit; stateless, out of place."""
    assert logits.dtype == torch.float32
    bonus = torch.zeros_like(logits)
    bonus[favored_token(token_ids)] = 100.0
    return logits + bonus


def forbid(token_id: int) -> Row:
    """Return a stateless callable that works in place."""

    def ban(token_ids: list[int], logits: Tensor) -> Tensor:
        logits[token_id] = -torch.inf
        return logits

    return ban


class Countdown:
    """Stateful: its n-th call forces token ``first + n``. Counts instances and calls."""

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
    """A stateful `transformers` processor: every other call forces token 5, the others token 6."""

    def __init__(self) -> None:
        self.odd = False

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.odd = not self.odd
        forced = torch.full_like(scores, -torch.inf)
        forced[:, 5 if self.odd else 6] = 0.0
        return forced


class Seen(LogitsProcessor):  # type: ignore[misc]
    """Keeps state in a list, which only inspection of its attributes reveals."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.seen.append(int(input_ids[0, -1]))
        return scores


MEMBERS = LogitsProcessorList([NoRepeatNGramLogitsProcessor(2), MinLengthLogitsProcessor(30, EOS, device="cpu")])


def explode_after(token_ids: list[int], logits: Tensor) -> Tensor:
    """Fail for a sequence that begins with token 7, from its third generated token on."""
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
    """The example of vLLM's documentation: forces one token, unless it was generated `limit` times."""

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
    """Force the prompt again."""
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
    """Reads a sampling parameter that guideway lacks."""

    def new_req_logits_processor(self, params: Any) -> Row | None:
        return forbid(params.n_beams)


class Invariant(PerRequest):
    def is_argmax_invariant(self) -> bool:
        return True


class BatchLevel:
    """A processor of vLLM V1 for whole batches: it tracks requests by index, and forces the token of `BatchLevel.next`
    for each request with a ``step``."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.limit = vllm_config.scheduler_config.max_num_seqs
        self.rows: dict[int, tuple[int, list[int], list[int]]] = {}

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        if (sampling_params.extra_args or {}).get("step") == 0:
            raise ValueError("step 0 leads nowhere")

    @staticmethod
    def next(step: int, prompt: Sequence[int], output: Sequence[int]) -> int:
        return 4 + (sum(prompt) + step * len(output) + sum(output[-1:])) % 100

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        if batch_update is None:
            return
        assert batch_update.batch_size <= self.limit
        for index in batch_update.removed:
            self.rows.pop(index, None)
        for index, params, prompt, output in batch_update.added:
            self.rows.pop(index, None)
            if (step := (params.extra_args or {}).get("step")) is not None:
                self.rows[index] = (step, prompt, output)
        for one, other, direction in batch_update.moved:
            moved, there = self.rows.pop(one, None), self.rows.pop(other, None)
            if moved is not None:
                self.rows[other] = moved
            if there is not None and direction.name == "SWAP":
                self.rows[one] = there

    def apply(self, logits: Tensor) -> Tensor:
        for index, (step, prompt, output) in self.rows.items():
            if step < 0 and len(output) == 3:
                raise RuntimeError("it was asked to fail")
            logits[index] = -torch.inf
            logits[index, self.next(step, prompt, output)] = 0.0
        return logits


BATCH_LEVEL = BatchLevel(SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=8)), torch.device("cpu"), False)


class Demanding(BatchLevel):
    """Reads parts of vLLM's configuration that do not exist elsewhere."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self.longest = vllm_config.model_config.max_model_len


class OfV2:
    """The interface of vLLM's V2 model runner."""

    def add_request(self, slot: int, params: Any) -> bool:
        return False

    def apply_staged_writes(self) -> None:
        return None

    def apply(self, logits: Tensor, context: Any) -> Tensor:
        return logits
