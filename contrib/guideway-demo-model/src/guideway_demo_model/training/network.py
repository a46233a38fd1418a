"""A Llama for training on a CPU: the mathematics of ``transformers``' Llama in fewer passes over memory.

Its normalizations have no weights (they are exported as ones). Attention is written out: with heads of 32 dimensions
and a few hundred tokens, bfloat16 scaled-dot-product attention on a CPU took five times as long when measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name everybody knows it by)
from transformers import LlamaConfig, LlamaForCausalLM

from guideway_demo_model.training.tokenizer import BOS_ID, END_ID, PAD_ID

__all__ = ["MAX_TRAINED_LENGTH", "Network", "Shape", "export", "take_over"]

CONTEXT = 1024
MAX_TRAINED_LENGTH = 512
HEAD = 32
EPSILON = 1e-5
ROPE_BASE = 10_000.0
PROJECTIONS = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"),
    *("self_attn.o_proj", "mlp.down_proj"),
)
"""The matrices of a layer, by their names in transformers."""


@dataclass(frozen=True)
class Shape:
    """The sizes of the network; `hidden` is a multiple of 32 times `kv_heads`."""

    vocabulary: int
    hidden: int = 192
    layers: int = 6
    intermediate: int = 512
    kv_heads: int = 3

    @property
    def heads(self) -> int:
        return self.hidden // HEAD

    @property
    def group(self) -> int:
        """Query heads per kv head."""
        return self.heads // self.kv_heads


class _Normalize(torch.autograd.Function):
    """x / rms(x). The derivative needs only the output and the factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32).square_()
        factor: Tensor = (square / x.shape[-1] + EPSILON).rsqrt_().to(x.dtype)
        y = x * factor
        ctx.save_for_backward(y, factor)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Tensor:
        (grad,) = grads
        y, factor = ctx.saved_tensors
        along = torch.linalg.vecdot(grad, y).unsqueeze(-1) / y.shape[-1]
        dx: Tensor = torch.addcmul(grad, y, along, value=-1).mul_(factor)
        return dx


class _CrossEntropy(torch.autograd.Function):
    """Cross entropy of `hidden @ weight.T` against `target`, averaged with `shares`; `forward` computes its
    gradient."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, shares: Tensor) -> Tensor:
        p = (hidden @ weight.t()).float()
        normalizer = torch.logsumexp(p, -1, keepdim=True)
        index = target[:, None]
        loss = ((normalizer - p.gather(1, index)) * shares[:, None]).sum()
        p.sub_(normalizer).exp_().scatter_add_(1, index, torch.full_like(normalizer, -1.0)).mul_(shares[:, None])
        ctx.save_for_backward(p.to(hidden.dtype), hidden, weight)
        return loss

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[Tensor, Tensor, None, None]:  # the loss is where backward() starts
        grad, hidden, weight = ctx.saved_tensors
        return grad @ weight, grad.t() @ hidden, None, None


def _normalize(x: Tensor) -> Tensor:
    y: Tensor = _Normalize.apply(x)  # type: ignore[no-untyped-call]
    return y


class Block(nn.Module):
    """A layer. Query, key and value are one matrix, gate and up another."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        hidden, self.heads, self.kv_heads, self.group = shape.hidden, shape.heads, shape.kv_heads, shape.group
        self.qkv = nn.Linear(hidden, (shape.heads + 2 * shape.kv_heads) * HEAD, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.gate_up = nn.Linear(hidden, 2 * shape.intermediate, bias=False)
        self.down = nn.Linear(shape.intermediate, hidden, bias=False)
        for linear in (self.qkv, self.gate_up):
            nn.init.normal_(linear.weight, std=hidden**-0.5)
        for linear in (self.out, self.down):
            nn.init.zeros_(linear.weight)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """Return the layer's output for `x`: [batch, length, hidden]. `cos`, `sin`: [length, head]; `mask`: [length,
        length], added to the scores."""
        batch, length, hidden = x.shape
        heads, kv_heads, group = self.heads, self.kv_heads, self.group
        z = self.qkv(_normalize(x)).view(batch, length, heads + 2 * kv_heads, HEAD).transpose(1, 2)
        qk, v = z[:, : heads + kv_heads], z[:, heads + kv_heads :]
        turned = torch.cat((qk[..., HEAD // 2 :], qk[..., : HEAD // 2]), -1)  # its sign is folded into `sin`
        qk = torch.addcmul(qk * cos, turned, sin)
        # the query heads of one kv head become additional queries
        q = qk[:, :heads].reshape(-1, group * length, HEAD)
        k = qk[:, heads:].reshape(-1, length, HEAD)
        bias = mask.repeat(group, 1).expand(batch * kv_heads, -1, -1)
        scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=HEAD**-0.5)
        attended = (scores.softmax(-1) @ v.reshape(-1, length, HEAD)).view(batch, heads, length, HEAD)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, hidden))
        gate, up = self.gate_up(_normalize(x)).chunk(2, -1)
        y: Tensor = x + self.down(F.silu(gate) * up)
        return y


class Network(nn.Module):
    """The network; `forward` returns the mean loss over chosen positions. Embedding and output share their weights."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        frequency = ROPE_BASE ** -(torch.arange(0, HEAD, 2).float() / HEAD)
        angle = torch.outer(torch.arange(MAX_TRAINED_LENGTH).float(), frequency).repeat(1, 2)
        sign = torch.cat((-torch.ones(HEAD // 2), torch.ones(HEAD // 2)))
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin() * sign, persistent=False)
        future = torch.triu(torch.full((MAX_TRAINED_LENGTH, MAX_TRAINED_LENGTH), -1e4), 1)
        self.register_buffer("mask", future, persistent=False)

    def forward(self, token_ids: Tensor, positions: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the loss. `token_ids`: [batch, length]; `positions`: indices into the flattened batch of the tokens
        that predict `targets`; `weights` of the targets in the mean, equal by default."""
        length = token_ids.shape[1]
        x = self.embedding(token_ids)
        cos, sin, mask = self.get_buffer("cos"), self.get_buffer("sin"), self.get_buffer("mask")
        for block in self.blocks:
            x = block(x, cos[:length], sin[:length], mask[:length, :length])
        chosen = _normalize(x.view(-1, self.shape.hidden)[positions])
        weights = torch.ones(len(targets)) if weights is None else weights
        shares = weights / weights.sum()
        loss: Tensor = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
            chosen, self.embedding.weight, targets, shares
        )
        return loss


def export(network: Network) -> LlamaForCausalLM:
    """Return a model of ``transformers`` that computes the same function, in float32."""
    shape = network.shape
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        intermediate_size=shape.intermediate,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=EPSILON,
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=END_ID,
    )
    model = LlamaForCausalLM(config)
    ones = torch.ones(shape.hidden)
    embedding = network.embedding.weight.float()
    sizes = [shape.heads * HEAD, shape.kv_heads * HEAD, shape.kv_heads * HEAD]
    weights = {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding, "model.norm.weight": ones}
    for index, block in enumerate(network.blocks):
        assert isinstance(block, Block)
        matrices = (
            *torch.split(block.qkv.weight, sizes),
            *block.gate_up.weight.chunk(2),
            block.out.weight,
            block.down.weight,
        )
        layer = dict(zip(PROJECTIONS, matrices, strict=True))
        layer |= {"input_layernorm": ones, "post_attention_layernorm": ones}
        weights |= {f"model.layers.{index}.{name}.weight": weight.float() for name, weight in layer.items()}
    model.load_state_dict(weights)
    model.generation_config.eos_token_id = END_ID
    model.generation_config.pad_token_id = PAD_ID
    model.train(False)
    return model


@torch.no_grad()
def take_over(network: Network, model: LlamaForCausalLM) -> None:
    """Initialize `network` with the weights of an exported `model`.

    `network` may have fewer kv heads: those that are merged are averaged (Ainslie et al., GQA, 2023). It may have more
    layers: the middle layer is repeated with output matrices of zeros, so that the function stays the same (Wu et al.,
    LLaMA Pro, 2024).
    """
    shape, weights = network.shape, model.state_dict()
    network.embedding.weight.copy_(weights["model.embed_tokens.weight"])
    given = model.config.num_hidden_layers
    more, middle = shape.layers - given, given // 2
    origins = [*range(middle + 1), *[middle] * more, *range(middle + 1, given)]
    for index, (block, origin) in enumerate(zip(network.blocks, origins, strict=True)):
        assert isinstance(block, Block)
        layer = {name: weights[f"model.layers.{origin}.{name}.weight"] for name in PROJECTIONS}
        query, key, value, gate, up, out, down = layer.values()
        pooled = [w.view(shape.kv_heads, -1, HEAD, shape.hidden).mean(1).flatten(0, 1) for w in (key, value)]
        block.qkv.weight.copy_(torch.cat([query, *pooled]))
        block.gate_up.weight.copy_(torch.cat([gate, up]))
        block.out.weight.copy_(out)
        block.down.weight.copy_(down)
        if middle < index <= middle + more:
            block.out.weight.zero_()
            block.down.weight.zero_()
