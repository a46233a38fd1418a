"""What vLLM's backends enforce, a table for each version of their libraries: ``python -m guideway_vllm.stock.probe``.

They are judged as vLLM uses them, on a tokenizer of single bytes.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from guideway.json_schema.prober import SupportTable, Table, byte_vocabulary, probe

from guideway_vllm.stock.server import Server, serving

__all__ = ["TABLES", "stand_in"]


def stand_in(vocabulary: Any) -> Server:
    """As much of a vLLM as its backends look at, with a tokenizer of just these tokens, no two of which are equal."""
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


def _table(strategy: str, library: str) -> SupportTable:
    def measure() -> Table:
        from guideway_vllm.stock.backends import STRATEGIES

        vocabulary = byte_vocabulary()
        with serving(stand_in(vocabulary)):
            return probe(STRATEGIES[strategy](vocabulary, {}))

    return SupportTable(library, f"guideway_vllm.stock.tables.{strategy}", measure)


TABLES = {
    "vllm_guidance": _table("vllm_guidance", "llguidance"),
    "vllm_xgrammar": _table("vllm_xgrammar", "xgrammar"),
}
"""By strategy. The other two take minutes of a compiler's time for some of the schemas this is found out with."""


if __name__ == "__main__":
    for table in TABLES.values():
        table.write()
