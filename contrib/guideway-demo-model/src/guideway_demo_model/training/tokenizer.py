"""The tokenizer: byte-level BPE over words, single digits and runs of punctuation."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

__all__ = ["END", "END_ID", "PAD_ID", "VOCABULARY_SIZE", "train_tokenizer"]

VOCABULARY_SIZE = 1536
END = "<|end|>"
PAD_ID, BOS_ID, END_ID = 0, 1, 2
ROLES = ["<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
SPECIAL = ["<|pad|>", "<|bos|>", END, *ROLES]

# A word has the same tokens after a space and after a quote, which makes copying learnable. Runs of punctuation are
# merged (`":"`, `","`), so that tokens cross the borders of a grammar's terminals.
SPLIT = r"\p{L}+|\p{N}|\s+|[^\s\p{L}\p{N}]+"

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Train a tokenizer of at most `VOCABULARY_SIZE` tokens, with the chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=3,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=SPECIAL[PAD_ID],
        bos_token=SPECIAL[BOS_ID],
        eos_token=END,
        additional_special_tokens=ROLES,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
