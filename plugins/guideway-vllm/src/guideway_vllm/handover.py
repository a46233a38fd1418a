"""A vocabulary that the front end shares with the engine cores and workers it starts, so that they need not load the
tokenizer again. It is shared as data, which can only become a vocabulary."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from guideway.api import Encoder, InvalidConfiguration, Vocabulary
from guideway.vocabulary.byte_pair import BytePairEncoder
from guideway.vocabulary.huggingface import TokenizersEncoder

__all__ = ["Handover", "load_shared_vocabulary", "shared_vocabulary_size"]

log = logging.getLogger("vllm.guideway")

VARIABLE = "GUIDEWAY_VLLM_VOCABULARY"
"""Environment variable of processes that a front end starts: the fields of `VocabularyFile`, separated by colons."""


class VocabularyFile(NamedTuple):
    """Location of the shared vocabulary, as the environment variable holds it."""

    instance: str
    """The id of its ``VllmConfig``."""
    num_tokens: int
    num_bytes: int
    sha256: str
    """Digest of the file at `path`."""
    path: str
    """A file in the memory of the front end."""


PATTERN = re.compile(r"([^:]+):([0-9]{1,9}):([0-9]{1,12}):([0-9a-f]{64}):(/proc/[0-9]+/fd/[0-9]+)", re.ASCII)


class Handover:
    """Holds a vocabulary in shared memory for the processes that this one starts. Does nothing if the operating system
    has no such memory, or for an encoder of another family; then each process loads its tokenizer."""

    def __init__(self, vocabulary: Vocabulary, vllm_config: Any) -> None:
        self._file: int | None = None
        if not hasattr(os, "memfd_create") or not Path("/proc/self/fd").is_dir():
            return
        if (data := _pack(vocabulary)) is None:
            return
        self._file = os.memfd_create("guideway-vocabulary")
        with open(self._file, "wb", closefd=False) as file:
            file.write(data)
        path, digest = f"/proc/{os.getpid()}/fd/{self._file}", hashlib.sha256(data).hexdigest()
        self._value = ":".join(
            map(str, VocabularyFile(vllm_config.instance_id, len(vocabulary), len(data), digest, path))
        )
        os.environ[VARIABLE] = self._value

    def close(self) -> None:
        """Free the memory. Idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            if os.environ.get(VARIABLE) == self._value:
                del os.environ[VARIABLE]


def load_shared_vocabulary(vllm_config: Any) -> Vocabulary | None:
    """Return the vocabulary that a front end with this configuration shares from another process, or None."""
    shared = _find_file(vllm_config)
    return None if shared is None or shared.path.startswith(f"/proc/{os.getpid()}/") else _read(shared)


def shared_vocabulary_size(vllm_config: Any) -> int | None:
    """Return the number of tokens of the vocabulary that a front end with this configuration shares, or None."""
    shared = _find_file(vllm_config)
    return None if shared is None else shared.num_tokens or None


def _find_file(vllm_config: Any) -> VocabularyFile | None:
    """Return the location in the environment, if it is for this configuration."""
    found = PATTERN.fullmatch(os.environ.get(VARIABLE, ""))
    if found is None or found[1] != vllm_config.instance_id:
        return None
    return VocabularyFile(found[1], int(found[2]), int(found[3]), found[4], found[5])


@lru_cache(maxsize=1)
def _read(shared: VocabularyFile) -> Vocabulary | None:
    try:
        with Path(shared.path).open("rb") as file:
            data = file.read(shared.num_bytes)
    except OSError:  # the front end has ended, or is in another container
        return None
    if hashlib.sha256(data).hexdigest() == shared.sha256:
        try:
            return _unpack(data)
        except (ValueError, TypeError, LookupError, InvalidConfiguration) as error:
            log.warning("guideway: the vocabulary of the front end cannot be read, so the tokenizer is: %s", error)
    else:
        log.warning("guideway: %s is not what the front end wrote, so the tokenizer is read", shared.path)
    return None


def _pack(vocabulary: Vocabulary) -> bytes | None:
    """Return the vocabulary as JSON, with bytes as text in latin-1; None for an encoder of another family."""
    encoder = vocabulary.encoder
    # the inner encoder if this one only drops tokens past the logits
    inner = getattr(encoder, "encoder", None)
    described: dict[str, Any] | None
    match inner or encoder:
        case TokenizersEncoder() as found:
            description, tokens = found.__getstate__().values()
            described = {"description": description, "tokens": _texts(tokens)}
        case BytePairEncoder() as found:
            state = found.__getstate__()
            described = {**state, "ranks": [_texts(state["ranks"]), list(state["ranks"].values())]}
        case None:
            described = None
        case _:
            return None
    return json.dumps(
        {
            "tokens": _texts(vocabulary.tokens),
            "stop_token_ids": sorted(vocabulary.stop_token_ids),
            "special_tokens": list(vocabulary.special_tokens.items()),
            "logits_width": vocabulary.logits_width,
            "is_narrow": inner is not None,
            "encoder": described,
        }
    ).encode()


def _unpack(data: bytes) -> Vocabulary:
    """Return the vocabulary in `data`. Raises ValueError, TypeError, LookupError or `InvalidConfiguration` if `_pack`
    did not write it."""
    handed = json.loads(data)
    encoder: Encoder | None = None
    match handed["encoder"]:
        case {"description": str(description), "tokens": list(tokens)}:
            encoder = TokenizersEncoder(description, _bytes(tokens))
        case {"pattern": str(pattern), "ranks": [ranked, ranks], "first_id": int(first_id)}:
            table = dict(zip(_bytes(ranked), ranks, strict=True))
            encoder = BytePairEncoder.__new__(BytePairEncoder)
            encoder.__setstate__({"pattern": pattern, "ranks": table, "first_id": first_id})
    tokens = _bytes(handed["tokens"])
    if handed["is_narrow"]:  # one token more than there are logits, so that the encoder is wrapped again
        tokens.append(b"")
    return Vocabulary(
        tokens,
        frozenset(handed["stop_token_ids"]),
        dict(handed["special_tokens"]),
        handed["logits_width"],
        encoder=encoder,
    )


def _texts(data: Iterable[bytes]) -> list[str]:
    return [each.decode("latin-1") for each in data]


def _bytes(texts: Iterable[str]) -> list[bytes]:
    return [each.encode("latin-1") for each in texts]
