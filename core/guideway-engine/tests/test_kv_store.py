"""The tensors of the cache: each move is executed once and in order, and views show the written values."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest
import torch
from guideway.api import InvalidConfiguration
from guideway.api.forward import Clear, Copy
from guideway.errors import GuidewayError
from guideway_engine.runners.transformers.kv_store import KVShape, KVStore
from torch import Tensor

CPU = torch.device("cpu")


@pytest.fixture
def store() -> KVStore:
    shape = KVShape(num_layers=2, num_heads=3, key_dim=4, value_dim=5)
    store = KVStore(shape, num_cells=100, dtype=torch.float32, device=CPU)
    store.keys.copy_(torch.randn(store.keys.shape, generator=torch.Generator().manual_seed(0)))
    store.values.copy_(torch.randn(store.values.shape, generator=torch.Generator().manual_seed(1)))
    return store


def test_a_view_shows_regions_at_equal_distances(store: KVStore) -> None:
    keys, values = store.views(start=34, num_regions=2, size=32, num_keys=20)[1]
    assert keys.shape == (2, 3, 20, 4)
    assert values.shape == (2, 3, 20, 5)
    for region, first in enumerate((34, 66)):
        assert torch.equal(keys[region], store.keys[1, :, first : first + 20])
        assert torch.equal(values[region], store.values[1, :, first : first + 20])


def test_what_is_written_is_there(store: KVStore) -> None:
    before = store.keys.clone()
    keys, values = torch.randn(3, 2, 4), torch.randn(3, 2, 5)
    store.write(1, torch.tensor([7, 90]), keys, values)
    assert torch.equal(store.keys[1][:, [7, 90]], keys)
    assert torch.equal(store.values[1][:, [7, 90]], values)
    store.keys[1][:, [7, 90]] = before[1][:, [7, 90]]
    assert torch.equal(store.keys, before)


def test_moves_copy_and_clear_in_every_layer_and_head(store: KVStore) -> None:
    expected = [store.keys.clone(), store.values.clone()]
    for tensor in expected:
        tensor[:, :, 64:84] = tensor[:, :, :20]
        tensor[:, :, :30] = 0
    store.move((Copy(0, 64, 20), Clear(0, 30)), 0)
    assert torch.equal(store.keys, expected[0])
    assert torch.equal(store.values, expected[1])


def test_each_move_is_done_once(store: KVStore) -> None:
    moves = (Copy(0, 10, 5), Copy(10, 20, 5), Clear(0, 5))
    store.move(moves[:2], 0)
    assert store.num_moves == 2
    expected = store.keys[:, :, 10:15].clone()
    store.keys[:, :, 10:15] = 1  # a step has written meanwhile
    store.move(moves, 0)
    assert store.num_moves == 3
    assert torch.equal(store.keys[:, :, 20:25], expected)
    assert not store.keys[:, :, :5].any()
    store.move(moves[1:], 1)
    assert store.num_moves == 3
    with pytest.raises(GuidewayError, match="moves 3 to 4 of the KV cache never arrived"):
        store.move(moves[2:], 5)


class Interrupted:
    """Raises a KeyboardInterrupt when used in place of the values."""

    def narrow(self, *_: object) -> Tensor:
        raise KeyboardInterrupt


def test_an_interrupted_move_is_done_again(store: KVStore) -> None:
    keys, values = store.keys.clone(), store.values.clone()
    moves = (Copy(0, 10, 5), Copy(10, 20, 5), Clear(10, 5))
    store.move(moves[:1], 0)
    whole = store.values
    store.values = cast("Tensor", Interrupted())
    with pytest.raises(KeyboardInterrupt):  # after the keys, but not the values, were copied
        store.move(moves, 0)
    store.values = whole
    assert store.num_moves == 1
    store.move(moves, 0)
    assert store.num_moves == 3
    for tensor, before in ((store.keys, keys), (store.values, values)):
        assert torch.equal(tensor[:, :, 20:25], before[:, :, :5])
        assert not tensor[:, :, 10:15].any()


def test_a_cache_larger_than_the_memory_is_refused() -> None:
    shape = KVShape(num_layers=40, num_heads=64, key_dim=128, value_dim=128)
    with pytest.raises(
        InvalidConfiguration, match=r"KV cache of 1000000000000 tokens, which takes 2.62e\+09 GB"
    ) as error:
        KVStore(shape, num_cells=10**12, dtype=torch.float32, device=CPU)
    assert error.value.field == "num_cells"


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cells_are_zeros_and_take_no_memory_before_they_are_written(dtype: torch.dtype) -> None:
    before = resident_bytes()
    store = KVStore(KVShape(1, 1, 1 << 10, 1 << 10), num_cells=1 << 15, dtype=dtype, device=CPU)
    assert resident_bytes() - before < store.keys.nbytes // 10
    for tensor in (store.keys, store.values):
        assert tensor.dtype == dtype and tensor.shape == (1, 1, 1 << 15, 1 << 10)
        assert not tensor[..., :: 1 << 12, :].any()
