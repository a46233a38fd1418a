"""The keywords that vLLM's backends enforce, one table per version of their libraries: ``python -m
guideway_vllm.stock``.

They are probed as vLLM uses them, with a tokenizer of single bytes.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any, cast

from guideway.json_schema.support import SupportTable, Table

from guideway_vllm.stock.server import Server, serving

__all__ = ["stand_in", "support_table"]


def stand_in(vocabulary: Any) -> Server:
    """Return a stub of the vLLM objects that its backends use, with a tokenizer of exactly these tokens, which must
    differ."""
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    make, letters = cast("Any", PreTrainedTokenizerFast), cast("Any", bytes_to_unicode)()
    names = {i: vocabulary.special_tokens.get(i, f"<|{i}|>") for i, token in enumerate(vocabulary.tokens) if not token}
    texts = [names.get(i) or "".join(letters[byte] for byte in t) for i, t in enumerate(vocabulary.tokens)]
    native = Tokenizer(BPE(vocab={text: i for i, text in enumerate(texts)}, merges=[]))
    native.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    native.decoder = decoders.ByteLevel()
    native.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names.values()])
    tokenizer = make(tokenizer_object=native, eos_token=names[min(vocabulary.stop_token_ids)])
    config = SimpleNamespace(
        model_config=SimpleNamespace(hf_config=SimpleNamespace(model_type="")),
        speculative_config=None,
        structured_outputs_config=SimpleNamespace(disable_any_whitespace=False, disable_additional_properties=False),
    )
    return Server(config, tokenizer)


@cache
def support_table(strategy: Any) -> SupportTable:
    """Return the table of enforced keywords of a `StockStrategy` with a library, read from the file next to the
    strategy or probed. Other libraries would take minutes for some of the probe's schemas."""

    def measure() -> Table:
        from guideway.json_schema.prober import byte_vocabulary, probe

        vocabulary = byte_vocabulary()
        with serving(stand_in(vocabulary)):
            return probe(strategy(vocabulary, {}))

    return SupportTable(strategy.library, strategy.__module__.rpartition(".")[0], measure)
