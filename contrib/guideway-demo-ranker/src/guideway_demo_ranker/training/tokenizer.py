"""The tokenizer: WordPiece over lower-case words, with BERT's special tokens."""

from __future__ import annotations

import string
from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

__all__ = ["CONTEXT", "train_tokenizer"]

VOCABULARY_SIZE = 2048
"""The most tokens."""
MIN_FREQUENCY = 24
"""The least count of a token in the texts: words of templates are tokens, and invented names are made of several."""
CONTEXT = 128
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
LETTERS = string.ascii_lowercase + string.digits
INSIDE = [f"##{letter}" for letter in LETTERS]
"""Letters and digits that do not begin a word."""


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Make a tokenizer of the words and syllables of `texts`. The same texts give the same one."""
    tokenizer = _tokenizer(models.WordPiece(unk_token="[UNK]"))
    trainer = trainers.WordPieceTrainer(
        vocab_size=VOCABULARY_SIZE,
        min_frequency=MIN_FREQUENCY,
        # special: else those inside words are numbered by chance, which decides between merges that are as frequent
        special_tokens=[*SPECIAL, *INSIDE],
        initial_alphabet=[*LETTERS, *string.punctuation],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer = _tokenizer(models.WordPiece(tokenizer.get_vocab(), unk_token="[UNK]"))  # where they are not
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
