"""Tensor parallelism: each worker keeps a shard of every large weight, by the plan of `transformers` for the
architecture.

Designed to be correct rather than fast: each worker loads the whole model and then keeps its shard, and the sharded
model must reproduce the outputs of the whole one before it is used.
"""

from __future__ import annotations

import os
import socket
from math import gcd
from typing import Any

import torch
from guideway.errors import InvalidConfiguration
from torch import distributed
from torch._C._distributed_c10d import TCPStore  # its module for type checkers
from torch.distributed.device_mesh import init_device_mesh
from transformers import PreTrainedModel

__all__ = ["leave", "share"]

TRIAL_TOKENS = 8


def share(model: PreTrainedModel, rank: int, num_workers: int) -> PreTrainedModel:
    """Return `model` with only this worker's shard of its weights. All workers must call this at the same time.

    They connect at ``MASTER_ADDR`` and ``MASTER_PORT`` of the environment. Raises `InvalidConfiguration` for a model
    that cannot be sharded among `num_workers`.
    """
    if model.device.type != "cpu":
        raise InvalidConfiguration(
            f"several workers can share a model on device 'cpu' only so far, not on {str(model.device)!r}",
            field="device",
        )
    _check_heads(model, num_workers)
    expected = _trial(model)
    if not distributed.is_initialized():
        store = _store(rank, num_workers)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=num_workers)
    _untie(model)
    try:
        shared = _distribute(model, num_workers)
        found = _trial(shared)
    except Exception as error:  # any error caused by the model's plan and the shapes of its weights
        raise _refusal(model, num_workers, f"{type(error).__name__}: {error}") from error
    tolerance = torch.finfo(model.dtype).eps ** 0.5 * expected.abs().max()
    if found.shape != expected.shape or not bool((found - expected).abs().max() <= tolerance):
        raise _refusal(model, num_workers, "by transformers' plan for it they compute something else than one does")
    return shared


def _store(rank: int, num_workers: int) -> TCPStore:
    """Return the store through which the workers find each other. The first worker listens only at that address; torch
    by itself would listen at every address of the machine."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    listening = socket.create_server((host, port)).detach() if rank == 0 else None
    return TCPStore(host, port, num_workers, is_master=rank == 0, master_listen_fd=listening)


def leave() -> None:
    """Leave the process group of the workers, if there is one."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _untie(model: PreTrainedModel) -> None:
    """Give the head its own weights if it shares them with the embeddings: plans shard the head, but seldom the
    embeddings."""
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    embeddings: Any = model.get_input_embeddings()
    if head is not None and head.weight is embeddings.weight:
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        model.config.get_text_config().tie_word_embeddings = False


def _distribute(model: PreTrainedModel, num_workers: int) -> PreTrainedModel:
    from transformers.distributed.configuration_utils import DistributedConfig
    from transformers.distributed.utils import TransformersDeviceMesh

    mesh = init_device_mesh("cpu", (1, 1, 1, num_workers), mesh_dim_names=("pp", "dp_replicate", "fsdp", "tp"))
    plan: Any = DistributedConfig(tp_plan="auto", tp_size=num_workers)
    # for loaded weights each worker slices its shard, and nothing is sent
    shared: PreTrainedModel = model.maybe_distribute_model(model, plan, TransformersDeviceMesh(mesh, mesh))
    return shared


def _check_heads(model: PreTrainedModel, num_workers: int) -> None:
    if not model.supports_tp_plan:
        raise _refusal(model, num_workers, "transformers has no plan for it")
    config: Any = model.config.get_text_config()
    found = {name: getattr(config, name, None) for name in ("num_attention_heads", "num_key_value_heads")}
    heads = {name: number for name, number in found.items() if isinstance(number, int)}
    for name, number in heads.items():
        if number % num_workers:
            common = gcd(*heads.values())
            able = " or ".join(str(n) for n in range(1, common + 1) if common % n == 0)
            reason = f"its {name} is {number}, which {num_workers} does not divide; num_workers has to be {able}"
            raise _refusal(model, num_workers, reason)


@torch.inference_mode()
def _trial(model: PreTrainedModel) -> torch.Tensor:
    """Return the logits of a few tokens."""
    token_ids = torch.arange(TRIAL_TOKENS)[None] % model.config.get_text_config().vocab_size
    logits: torch.Tensor = model(input_ids=token_ids, use_cache=False).logits
    return logits.float()


def _refusal(model: PreTrainedModel, num_workers: int, reason: str) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"{num_workers} workers cannot share a {type(model).__name__}: {reason}", field="executor"
    )
