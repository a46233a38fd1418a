"""Linear layers computed by oneDNN: the same results as torch's, and used only where they are faster."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from guideway_engine import linear
from guideway_engine.linear import use_onednn
from torch.nn import Linear, Parameter
from torch.utils._python_dispatch import TorchDispatchMode

WIDTH, HEIGHT = 300, 700

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


class Operators(TorchDispatchMode):
    """Records the names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def layer(*, bias: bool = True, dtype: torch.dtype = torch.float32) -> Linear:
    torch.manual_seed(0)
    made = Linear(WIDTH, HEIGHT, bias=bias, dtype=dtype)
    use_onednn(made)
    return made


def takes_onednn(made: Linear, x: torch.Tensor) -> bool:
    with torch.no_grad(), Operators() as operators:
        made(x)
    return any("_linear_pointwise" in name for name in operators.names)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "x",
    [
        torch.rand(40, WIDTH),
        torch.rand(1, 40, WIDTH),
        torch.rand(2, 30, WIDTH).transpose(0, 1),
        torch.rand(WIDTH, 40).t(),
        torch.rand(40, 2 * WIDTH)[:, ::2],
        torch.rand(2, WIDTH),
        torch.rand(WIDTH),
        torch.rand(0, WIDTH),
    ],
    ids=lambda x: f"{tuple(x.shape)} {x.stride()}",
)
def test_the_results_are_those_of_torch(x: torch.Tensor, *, bias: bool) -> None:
    made = layer(bias=bias)
    with torch.inference_mode():
        expected = torch.nn.functional.linear(x, made.weight, made.bias)
        assert torch.allclose(made(x), expected, atol=1e-5)
        assert made(x).shape == expected.shape


def test_it_is_taken_for_many_products_alone() -> None:
    made = layer()
    assert takes_onednn(made, torch.rand(40, WIDTH))
    assert takes_onednn(made, torch.rand(1, 40, WIDTH))
    assert not takes_onednn(made, torch.rand(2, WIDTH))
    assert not takes_onednn(layer(dtype=torch.float64), torch.rand(40, WIDTH, dtype=torch.float64))


def test_a_large_model_has_no_second_copy_of_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    small = layer()
    monkeypatch.setattr(linear, "MAX_PACKED_BYTES", 4 * WIDTH * HEIGHT)
    assert layer()._guideway_packed is not None
    monkeypatch.setattr(linear, "MAX_PACKED_BYTES", 4 * WIDTH * HEIGHT - 1)
    large = layer()
    assert not hasattr(large, "_guideway_packed")
    x = torch.rand(40, WIDTH)
    assert takes_onednn(large, x)
    with torch.inference_mode():
        assert torch.allclose(large(x), small(x), atol=1e-5)


def test_weights_may_change_and_gradients_may_be_asked_for() -> None:
    made = layer()
    made.weight = Parameter(torch.rand(WIDTH, HEIGHT).t())
    x = torch.rand(40, WIDTH)
    expected = torch.nn.functional.linear(x, made.weight, made.bias)
    with torch.inference_mode():
        assert torch.allclose(made(x), expected, atol=1e-4)
    made(x).sum().backward()
    assert made.weight.grad is not None


@pytest.mark.parametrize("packed", [True, False])
def test_weights_may_change_in_place(monkeypatch: pytest.MonkeyPatch, *, packed: bool) -> None:
    monkeypatch.setattr(linear, "MAX_PACKED_BYTES", (1 << 30) * packed)
    made = layer()
    x = torch.rand(40, WIDTH)
    with torch.inference_mode():
        made(x)
        made.weight.mul_(2)
        assert torch.allclose(made(x), torch.nn.functional.linear(x, made.weight, made.bias), atol=1e-5)
    made.load_state_dict(Linear(WIDTH, HEIGHT).state_dict())
    with torch.inference_mode():
        assert torch.allclose(made(x), torch.nn.functional.linear(x, made.weight, made.bias), atol=1e-5)


def test_before_its_first_use_a_layer_may_be_changed_in_any_way() -> None:
    made = layer()
    made.weight.data.mul_(2)
    x = torch.rand(40, WIDTH)
    with torch.inference_mode():
        assert torch.allclose(made(x), torch.nn.functional.linear(x, made.weight, made.bias), atol=1e-5)


def test_a_copy_has_its_own_weights() -> None:
    made = layer()
    other = copy.deepcopy(made)
    with torch.no_grad():
        other.weight.zero_()
        assert takes_onednn(other, torch.rand(40, WIDTH))
        assert torch.equal(other(torch.rand(40, WIDTH)), other.bias.expand(40, HEIGHT))
