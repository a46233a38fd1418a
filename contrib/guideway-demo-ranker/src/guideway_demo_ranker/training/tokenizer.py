"""The tokenizer: WordPiece over lower-case words, with BERT's special tokens."""

from __future__ import annotations

import string
from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

__all__ = ["CONTEXT", "train_tokenizer"]

VOCABULARY_SIZE = 2048
"""Maximum number of tokens."""
MIN_FREQUENCY = 24
"""Minimum count of a token in the texts: template words become tokens, and invented names several tokens."""
CONTEXT = 128
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
LETTERS = string.ascii_lowercase + string.digits
INSIDE = [f"##{letter}" for letter in LETTERS]
"""Letters and digits inside a word."""


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Train a tokenizer on the words and syllables of `texts`. The same texts give the same tokenizer."""
    tokenizer = _tokenizer(models.WordPiece(unk_token="[UNK]"))
    trainer = trainers.WordPieceTrainer(
        vocab_size=VOCABULARY_SIZE,
        min_frequency=MIN_FREQUENCY,
        # special: otherwise those inside words get random numbers, which decide between equally frequent merges
        special_tokens=[*SPECIAL, *INSIDE],
        initial_alphabet=[*LETTERS, *string.punctuation],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer = _tokenizer(models.WordPiece(tokenizer.get_vocab(), unk_token="[UNK]"))  # here they are not special
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, SPECIAL.index(token)) for token in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=CONTEXT,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def _tokenizer(model: models.WordPiece) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer
