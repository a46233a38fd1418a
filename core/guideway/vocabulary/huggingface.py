"""Vocabularies of Hugging Face ``tokenizers``, read from ``tokenizer.json``.

The decoder, which turns generated ids into text, defines the bytes of a token. Two families are exact:

* byte-level: each character of a token stands for one byte in the alphabet of GPT-2;
* SentencePiece-like: a few replacements (``▁`` is a space), then ``<0xNN>`` is the byte NN, then everything is joined.

Decoders that depend on neighboring tokens or text have no bytes per token and are refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from guideway.api.vocabulary import Vocabulary
from guideway.errors import InvalidConfiguration
from guideway.vocabulary.families import check_fits, is_a

__all__ = ["TokenizersEncoder", "from_tokenizers", "from_transformers", "is_fast"]

BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


def is_fast(tokenizer: Any) -> bool:
    """Return whether `tokenizer` is a fast tokenizer of ``transformers``."""
    return is_a(tokenizer, "transformers", "PreTrainedTokenizerBase") and hasattr(tokenizer, "backend_tokenizer")


def from_transformers(tokenizer: Any, logits_width: int, stop_token_ids: frozenset[int]) -> Vocabulary:
    """Build the vocabulary of a fast tokenizer of ``transformers``, whose end-of-text token is a stop token."""
    eos = tokenizer.eos_token_id
    return from_tokenizers(
        tokenizer.backend_tokenizer,
        logits_width,
        stop_token_ids if eos is None else stop_token_ids | {eos},
        also_special=frozenset(tokenizer.all_special_ids),
    )


def from_tokenizers(
    tokenizer: Any,
    logits_width: int,
    stop_token_ids: frozenset[int],
    also_special: frozenset[int] = frozenset(),
) -> Vocabulary:
    """Build the vocabulary of a ``tokenizers.Tokenizer``. `also_special` are ids of special tokens that the tokenizer
    does not mark as special. Raises `InvalidConfiguration` naming the part of the tokenizer that has no exact bytes."""
    description = tokenizer.to_str()
    bytes_of = TokenBytes(_without_vocabulary(description) or json.loads(description))
    added = tokenizer.get_added_tokens_decoder()
    special = {i for i, token in added.items() if token.special} | also_special | (stop_token_ids & added.keys())
    names = {i: name for name, i in tokenizer.get_vocab(with_added_tokens=True).items()}
    check_fits(max(names.keys() - added.keys(), default=-1) + 1, logits_width)
    # as in decoding, an added token's text takes precedence over the model's name for its id
    names.update({i: token.content for i, token in added.items()})
    tokens = tuple(
        b"" if i in special or i not in names else bytes_of(names[i]) for i in range(max(names, default=-1) + 1)
    )
    return Vocabulary(
        tokens=tokens,
        stop_token_ids=stop_token_ids,
        special_tokens={i: names[i] for i in sorted(special) if i in names},
        logits_width=logits_width,
        encoder=TokenizersEncoder(description, tokens),
    )


VOCABULARY = re.compile(r'(?<=[{,])"vocab":')
"""The key of a model's tokens in ``tokenizer.json``. It never matches inside a string, where quotes are escaped."""


def _without_vocabulary(description: str) -> dict[str, Any] | None:
    """Return ``tokenizer.json`` without the model's tokens, which are last and take most of the time to parse; None if
    they are not last."""
    found = VOCABULARY.search(description)
    try:
        head: dict[str, Any] = json.loads(f'{description[: found.start()]}"vocab":null}}}}') if found else {}
    except ValueError:
        return None
    return head if list(head)[-1:] == ["model"] and list(head["model"])[-1] == "vocab" else None


class TokenBytes:
    """A callable that returns the bytes which a token appends to a text, by the rules of the tokenizer's decoder."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._byte_level = False
        self._byte_fallback = False
        self._replacements: list[tuple[str, str]] = []
        self._read_decoder(_flatten(spec["decoder"]))
        self._check_model(spec)

    def __call__(self, token: str) -> bytes:
        if self._byte_level:
            try:
                return token.translate(BYTE_OF).encode("latin-1")
            except UnicodeEncodeError:  # an added token, written as plain text
                return token.encode()
        for old, new in self._replacements:
            token = token.replace(old, new)
        if self._byte_fallback and (byte := BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(byte[1])
        return token.encode()

    def _read_decoder(self, steps: Sequence[dict[str, Any]]) -> None:
        if [step["type"] for step in steps] == ["ByteLevel"]:
            self._byte_level = True
            return
        joined = False
        for step in steps:
            match step:
                case {"type": "Replace", "pattern": {"String": old}, "content": new} if not self._byte_fallback:
                    self._replacements.append((old, new))
                case {"type": "Metaspace", "replacement": old} if not self._byte_fallback:
                    self._replacements.append((old, " "))
                case {"type": "ByteFallback"} if not joined:
                    self._byte_fallback = True
                case {"type": "Fuse"}:
                    joined = True
                case {"type": "Strip", "stop": 0} if joined:
                    pass  # removes characters only at the start of the whole text
                case _:
                    raise _refusal("decoder", steps, step)
            if joined and step["type"] in ("Replace", "Metaspace"):
                raise _refusal("decoder", steps, step)
        if not self._replacements and not self._byte_fallback:
            raise _refusal("decoder", steps, steps[0] if steps else None)

    def _check_model(self, spec: dict[str, Any]) -> None:
        model = spec["model"]
        if model["type"] not in ("BPE", "Unigram"):
            raise _refusal("model", [model], model)
        for affix in ("continuing_subword_prefix", "end_of_word_suffix"):
            if model.get(affix):
                raise InvalidConfiguration(
                    f"no exact token bytes for a tokenizer whose model has {affix}={model[affix]!r}", field="tokenizer"
                )
        writes_bytes = any(
            part["type"] == "ByteLevel" for place in ("normalizer", "pre_tokenizer") for part in _flatten(spec[place])
        )
        if writes_bytes != self._byte_level or (model.get("byte_fallback") and not self._byte_fallback):
            raise InvalidConfiguration(
                "no exact token bytes for a tokenizer that writes bytes in one way and reads them in another: "
                f"ByteLevel before the model: {writes_bytes}, model with byte_fallback: "
                f"{bool(model.get('byte_fallback'))}, decoder: {_describe(_flatten(spec['decoder']))}",
                field="tokenizer",
            )


class TokenizersEncoder:
    """An encoder of the middle of a text, like the tokenizer, which treats the names of special tokens as ordinary
    text.

    The tokenizer is rebuilt from its description without the parts that act on the start of a whole text (the dummy
    prefix of SentencePiece: ``Prepend``, ``prepend_scheme``, ``add_prefix_space``), so no space is added before text
    that continues other text. Random merges (``dropout``), truncation, padding and the template of special tokens are
    removed too.
    """

    def __init__(self, description: str, tokens: Sequence[bytes]) -> None:
        self._given = description
        self._tokens = tokens

    def __getstate__(self) -> dict[str, Any]:
        return {"_given": self._given, "_tokens": self._tokens}

    @cached_property
    def _description(self) -> str:
        """The description without the parts that act on a whole text; created on first use, because that is slow."""
        head = _without_vocabulary(self._given)
        if head is not None:
            text = json.dumps(_for_running_text(head), ensure_ascii=False, separators=(",", ":"))
            tail = '"vocab":null}}'
            found = VOCABULARY.search(self._given)
            if found and text.endswith(tail):
                return text.removesuffix(tail) + self._given[found.start() :]
        return json.dumps(_for_running_text(json.loads(self._given)), ensure_ascii=False)

    @cached_property
    def identity(self) -> bytes:
        """The digest of the tokenizer's description as this encoder uses it."""
        return hashlib.sha256(b"tokenizers " + self._description.encode()).digest()

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(self._description)
        tokenizer.encode_special_tokens = True  # the library's term for treating their names as ordinary text
        return tokenizer

    def encode(self, text: bytes) -> list[int] | None:
        """Return the token ids of `text`; None if it is not UTF-8 or if the ids do not decode to it (normalizers
        change text, unknown characters are lost, and added tokens may remove the spaces around them)."""
        try:
            ids: list[int] = self._tokenizer.encode(text.decode(), add_special_tokens=False).ids
        except UnicodeDecodeError:
            return None
        except Exception as error:
            # the library raises a bare Exception if a Unigram model has no id for a character
            if type(error) is not Exception:
                raise
            return None
        return ids if b"".join(self._tokens[i] for i in ids) == text else None


def _for_running_text(spec: dict[str, Any]) -> dict[str, Any]:
    spec = {**spec, "truncation": None, "padding": None, "post_processor": None}
    spec["normalizer"] = _sequence([n for n in _flatten(spec["normalizer"]) if n["type"] != "Prepend"], "normalizers")
    spec["pre_tokenizer"] = _sequence([_without_prefix(p) for p in _flatten(spec["pre_tokenizer"])], "pretokenizers")
    if "dropout" in spec["model"]:
        spec["model"] = {**spec["model"], "dropout": None}
    return spec


def _without_prefix(pre_tokenizer: dict[str, Any]) -> dict[str, Any]:
    match pre_tokenizer["type"]:
        case "Metaspace":
            return {**pre_tokenizer, "prepend_scheme": "never"}
        case "ByteLevel":
            return {**pre_tokenizer, "add_prefix_space": False}
    return pre_tokenizer


def _flatten(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the steps of a decoder, normalizer or pre-tokenizer: the members of a sequence, one step, or none."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    members = next(value for value in part.values() if isinstance(value, list))
    return [step for member in members for step in _flatten(member)]


def _sequence(parts: list[dict[str, Any]], key: str) -> dict[str, Any] | None:
    return {"type": "Sequence", key: parts} if parts else None


def _describe(steps: Sequence[dict[str, Any]]) -> str:
    return " + ".join(step["type"] for step in steps) or "none"


def _refusal(part: str, steps: Sequence[dict[str, Any]], step: dict[str, Any] | None) -> InvalidConfiguration:
    found = _describe(steps)
    if step is not None and part == "decoder":
        found += f", of which {json.dumps(step, ensure_ascii=False)}"
    return InvalidConfiguration(
        f"no exact token bytes for a tokenizer with this {part}: {found}; accepted are BPE and Unigram models that "
        "decode byte by byte (ByteLevel), or by replacing text in each token (Metaspace or Replace) with or without "
        "ByteFallback",
        field="tokenizer",
    )


def _byte_level_alphabet() -> dict[int, str]:
    """Return the table for `str.translate` from GPT-2's alphabet to the characters U+0000 to U+00FF, one for each
    byte. In the alphabet, printable Latin-1 bytes are the same characters, and the other bytes, in order, are the
    characters from U+0100. Characters outside the alphabet map to one past U+00FF."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = dict.fromkeys(others, "\uffff")
    table |= {byte: chr(byte) for byte in printable}
    return table | {0x100 + i: chr(byte) for i, byte in enumerate(others)}


BYTE_OF = _byte_level_alphabet()
