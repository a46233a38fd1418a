"""Several workers that share a model compute the same as one."""

from __future__ import annotations

import ipaddress
import pickle
import random
import shutil
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.models import gpt2, llama
from guideway import Engine, EngineConfig, JsonObject, SamplingParams
from guideway.api import InvalidConfiguration
from guideway_demo_model import DemoModel
from guideway_engine.executors.process.executor import ProcessExecutor
from guideway_engine.runners.transformers.tensor_parallel import share
from transformers import PreTrainedModel

NUM_TOKENS = 1536
"""Size of the demo model's vocabulary."""


class Sharer:
    """A worker that shards a model and compares its outputs."""

    def __init__(self, rank: int, num_workers: int) -> None:
        torch.set_num_threads(1)
        self._rank, self._num_workers = rank, num_workers

    def share(self, seeds: list[int], tied: bool) -> Any:
        """Shard a model whose weights have the worker's own seed. Return the error of its outputs, and the shapes of
        the weights kept here."""
        model = llama(seeds[self._rank], num_kv_heads=2, tie_word_embeddings=tied)
        tokens = torch.arange(20)[None]
        with torch.inference_mode():
            alone = model(tokens).logits
            shared = share(model, self._rank, self._num_workers)
            names = ("model.layers.0.self_attn.q_proj.weight", "lm_head.weight")
            weights: list[Any] = [shared.get_parameter(name) for name in names]
            shapes = [tuple(weight.to_local().shape) for weight in weights]
            return float((shared(tokens).logits - alone).abs().max()), shapes


@pytest.fixture
def sharers() -> Iterator[ProcessExecutor]:
    executor = ProcessExecutor(Sharer, {"num_workers": 2})
    yield executor
    executor.close()


@pytest.mark.slow  # processes that import torch and transformers: half a minute for two on two busy cores
def test_each_worker_keeps_a_part_and_they_have_to_fit_together(sharers: ProcessExecutor) -> None:
    for tied in (False, True):
        for difference, shapes in sharers.submit("share", [0, 0], tied).results():
            assert difference < 1e-4
            assert shapes == [(32, 64), (150, 64)], "half of the query heads, half of the vocabulary"
    with pytest.raises(InvalidConfiguration, match="they compute something else than one does"):
        sharers.submit("share", [0, 1], False).results()


@pytest.mark.slow  # see above
def test_strangers_reach_workers_from_this_machine_alone_and_are_not_obeyed(
    sharers: ProcessExecutor, tmp_path: Path
) -> None:
    sharers.submit("share", [0, 0], False).results()
    places = listening(*(process.popen.pid for process in sharers._group._processes))
    assert places
    assert {ipaddress.ip_address(host).is_loopback for host, _ in places} == {True}
    executed = tmp_path / "executed"
    data = pickle.dumps(Executed(executed))
    for place in places:
        for said in (b"", data, len(data).to_bytes(8, "little") + data, struct.pack("!Q", len(data)) + data):
            with suppress(OSError), socket.create_connection(place, timeout=30) as end:
                end.sendall(said)
    assert not executed.exists()
    sharers.submit("share", [0, 0], True).results()


class Executed:
    """An object that creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self._file,)


def listening(*pids: int) -> set[tuple[str, int]]:
    """Return host and port of the TCP sockets at which these processes listen."""
    links = (str(link.readlink()) for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir())
    inodes = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text("utf-8").splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and rest[5] in inodes:
                host, port = local.split(":")
                words = struct.unpack(f">{len(host) // 8}I", bytes.fromhex(host))
                found.add((str(ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))), int(port, 16)))
    return found


def outputs(config: dict[str, Any]) -> list[tuple[int, ...]]:
    rng = random.Random(0)
    prompts = [[rng.randrange(300, NUM_TOKENS) for _ in range(rng.randrange(2, 40))] for _ in range(6)]
    greedy = SamplingParams(max_tokens=12, ignore_eos=True)
    constrained = SamplingParams(max_tokens=12, constraint=JsonObject())
    with Engine(EngineConfig(grammar=("xgrammar",), max_num_seqs=4, max_num_batched_tokens=32, **config)) as engine:
        results = engine.generate(prompts, [greedy] * 5 + [constrained])
    assert all(result.error is None for result in results)
    return [result.token_ids for result in results]


@pytest.mark.slow  # see above
@pytest.mark.parametrize(
    ("num_workers", "shape"),
    [
        (2, {"num_kv_heads": 2}),
        (3, {"num_kv_heads": 3, "num_attention_heads": 6, "hidden_size": 96, "tie_word_embeddings": True}),
    ],
    ids=["two", "three-tied"],
)
def test_several_workers_say_what_one_says(num_workers: int, shape: dict[str, Any], tmp_path: Path) -> None:
    shutil.copytree(DemoModel().path(), tmp_path, dirs_exist_ok=True)
    llama(vocab_size=NUM_TOKENS, **shape).save_pretrained(tmp_path)
    alone = outputs({"model": str(tmp_path)})
    several = {"executor": "process", "options": {"executor.process": {"num_workers": num_workers}}}
    assert outputs({"model": str(tmp_path), **several}) == alone
    assert len(set(alone)) == 6, "different prompts, different answers: else this says nothing"


@pytest.mark.parametrize(
    ("model", "num_workers", "reason"),
    [
        (llama(num_kv_heads=1), 2, "num_key_value_heads is 1, which 2 does not divide; num_workers has to be 1$"),
        (llama(), 3, "num_attention_heads is 4, which 3 does not divide; num_workers has to be 1 or 2 or 4$"),
        (
            llama(num_attention_heads=6, num_kv_heads=3, hidden_size=96),
            2,
            "num_key_value_heads is 3, which 2 does not divide; num_workers has to be 1 or 3$",
        ),
        (gpt2(), 2, "cannot share a GPT2LMHeadModel: transformers has no plan for it"),
    ],
    ids=["one-kv-head", "heads", "kv-heads", "plan"],
)
def test_a_model_that_cannot_be_shared_is_refused(model: PreTrainedModel, num_workers: int, reason: str) -> None:
    with pytest.raises(InvalidConfiguration, match=reason) as refusal:
        share(model, 0, num_workers)  # it raises before it waits for other workers
    assert refusal.value.field == "executor"


def test_devices_other_than_the_cpu_are_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="on device 'cpu' only so far, not on 'meta'") as refusal:
        share(llama().to("meta"), 0, 2)  # type: ignore[arg-type]
    assert refusal.value.field == "device"
