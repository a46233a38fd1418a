"""Several workers share one model: each keeps a part of every large weight, as `transformers` plans for the
architecture.

Meant to be right rather than quick: each worker loads the whole model and then keeps its part, and the shared model
has to compute what the whole one did before it is used.
"""

from __future__ import annotations

import os
import socket
from math import gcd
from typing import Any

import torch
from guideway.errors import InvalidConfiguration
from torch import distributed
from torch._C._distributed_c10d import TCPStore  # where types say that it is exported
from torch.distributed.device_mesh import init_device_mesh
from transformers import PreTrainedModel

__all__ = ["leave", "share"]

TRIAL_TOKENS = 8


def share(model: PreTrainedModel, rank: int, num_workers: int) -> PreTrainedModel:
    """`model`, of which this worker keeps its part; every one of the workers calls this at the same time.

    They meet where ``MASTER_ADDR`` and ``MASTER_PORT`` in the environment say. Raises `InvalidConfiguration` for a
    model that cannot be shared by so many.
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
        shared = _distributed(model, num_workers)
        found = _trial(shared)
    except Exception as error:  # whatever that model's plan and the shapes of its weights lead to
        raise _refused(model, num_workers, f"{type(error).__name__}: {error}") from error
    tolerance = torch.finfo(model.dtype).eps ** 0.5 * expected.abs().max()
    if found.shape != expected.shape or not bool((found - expected).abs().max() <= tolerance):
        raise _refused(model, num_workers, "by transformers' plan for it they compute something else than one does")
    return shared


def _store(rank: int, num_workers: int) -> TCPStore:
    """Return where workers find each other. The first of them listens at that address alone: torch by itself would
    listen at every address of the machine."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    listening = socket.create_server((host, port)).detach() if rank == 0 else None
    return TCPStore(host, port, num_workers, is_master=rank == 0, master_listen_fd=listening)


def leave() -> None:
    """Take leave of the other workers, if there are any."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _untie(model: PreTrainedModel) -> None:
    """Give the head weights of its own where they are the embeddings': plans split the head, and seldom those."""
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    embeddings: Any = model.get_input_embeddings()
    if head is not None and head.weight is embeddings.weight:
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        model.config.get_text_config().tie_word_embeddings = False


def _distributed(model: PreTrainedModel, num_workers: int) -> PreTrainedModel:
    from transformers.distributed.configuration_utils import DistributedConfig
    from transformers.distributed.utils import TransformersDeviceMesh

    mesh = init_device_mesh("cpu", (1, 1, 1, num_workers), mesh_dim_names=("pp", "dp_replicate", "fsdp", "tp"))
    plan: Any = DistributedConfig(tp_plan="auto", tp_size=num_workers)
    # on weights that are loaded, each worker cuts out its part and nothing is sent
    shared: PreTrainedModel = model.maybe_distribute_model(model, plan, TransformersDeviceMesh(mesh, mesh))
    return shared


def _check_heads(model: PreTrainedModel, num_workers: int) -> None:
    if not model.supports_tp_plan:
        raise _refused(model, num_workers, "transformers has no plan for it")
    config: Any = model.config.get_text_config()
    found = {name: getattr(config, name, None) for name in ("num_attention_heads", "num_key_value_heads")}
    heads = {name: number for name, number in found.items() if isinstance(number, int)}
    for name, number in heads.items():
        if number % num_workers:
            common = gcd(*heads.values())
            able = " or ".join(str(n) for n in range(1, common + 1) if common % n == 0)
            reason = f"its {name} is {number}, which {num_workers} does not divide; num_workers has to be {able}"
            raise _refused(model, num_workers, reason)


@torch.inference_mode()
def _trial(model: PreTrainedModel) -> torch.Tensor:
    """Return what the model says to a few tokens."""
    token_ids = torch.arange(TRIAL_TOKENS)[None] % model.config.get_text_config().vocab_size
    logits: torch.Tensor = model(input_ids=token_ids, use_cache=False).logits
    return logits.float()


def _refused(model: PreTrainedModel, num_workers: int, reason: str) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"{num_workers} workers cannot share a {type(model).__name__}: {reason}", field="executor"
    )
