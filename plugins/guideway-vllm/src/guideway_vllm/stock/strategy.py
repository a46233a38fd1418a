"""Base class of vLLM's backends as grammar strategies."""

from __future__ import annotations

import copy
import json
import re
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NoReturn

import numpy as np
from guideway.api import (
    WHITESPACE,
    Constraint,
    DeadEnd,
    Grammar,
    GrammarExample,
    GrammarStrategy,
    InvalidConfiguration,
    InvalidGrammar,
    JsonSchema,
    Regex,
    StructuralTag,
    Support,
    UnsupportedGrammar,
    Vocabulary,
    Whitespace,
    parse_options,
)
from guideway.api.bitmask import allocate
from guideway.json_schema import (
    WritingRule,
    check_schema,
    keywords,
    names_may_run_out,
    pattern_details,
    tag_schemas,
)
from numpy.typing import NDArray

from guideway_vllm.stock.matcher import MaskLayout, StockCompiled
from guideway_vllm.stock.probe import support_table
from guideway_vllm.stock.server import missing_server, server_for

__all__ = ["EXAMPLES", "GRAMMARS", "KINDS", "StockStrategy"]

LISTS = {
    "ebnf": 'root ::= "[" (number ("," number)*)? "]"\nnumber ::= [0-9]+',
    "lark": 'start: "[" (NUMBER ("," NUMBER)*)? "]"\nNUMBER: /[0-9]+/',
}
EXAMPLES: Sequence[GrammarExample] = tuple(
    GrammarExample(Grammar(text, dialect), (b"[]", b"[1,22,3]"), (b"[", b"[1,]", b"[01,x]", b""))
    for dialect, text in LISTS.items()
)
KINDS = frozenset({"json_schema", "json_object", "regex", "choice"})
GRAMMARS = frozenset({"grammar:ebnf", "grammar:lark", "structural_tag"})

WITH_SPECIALS = ("grammar:", "structural_tag")
"""Kinds of constraints that may contain special tokens."""

_CONTROL = re.compile(rb"[\x00-\x09\x0b\x0c\x0e-\x1f]")
"""Control characters, which JSON does not need. xgrammar allows them unescaped in strings with a length."""

MAX_MESSAGE = 300
BASE_NBYTES = 1 << 16
"""Rough minimum of bytes per grammar, for backends that do not report it."""

# Matches errors about text that is well formed.
_UNSUPPORTED = re.compile(r"support|implemented|exceed|limit|\btoo\b|timed out|universal start state", re.IGNORECASE)


@dataclass(frozen=True)
class Options:
    """Options of stock strategies: none. vLLM's settings for its backends are in ``--structured-outputs-config``."""


class StockStrategy(GrammarStrategy):
    """One of vLLM's backends, built when the first constraint is compiled, as vLLM does."""

    contract: ClassVar[str] = "1.0"
    inline: ClassVar[bool] = True
    backend: ClassVar[str]
    """Name of the backend in ``--structured-outputs-config``."""
    library: ClassVar[str | None] = None
    """Name of the library on PyPI, if ``support.json`` next to the strategy lists its enforced keywords."""
    enforced: ClassVar[frozenset[str]] = frozenset()
    """Keywords of JSON schemas that a backend without a table enforces."""
    whitespace: ClassVar[Sequence[Whitespace]] = ("bounded", "compact", "spaced", "any")
    """Values of `Whitespace` that it can enforce in JSON. Structural tags always have ``any``."""

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        parse_options(Options, options, where=f"grammar.{self.name}")
        self._server = server_for(f"grammar.{self.name}")
        if self._server.tokenizer.eos_token_id is None:
            raise InvalidConfiguration(
                f"grammar.{self.name} needs a tokenizer with an end-of-text token to end an output with",
                field="grammar",
            )
        self._rules = {word: WritingRule(vocabulary.tokens, word) for word in WHITESPACE}
        self._lock = threading.Lock()
        self._built: Any = None

    @classmethod
    def available(cls) -> str | None:
        return missing_server()

    # Hooks of each backend

    @abstractmethod
    def make(self, vllm_config: Any, tokenizer: Any, vocab_size: int) -> Any:
        """Return vLLM's backend."""

    @abstractmethod
    def validate(self, params: Any, tokenizer: Any) -> None:
        """Validate ``SamplingParams`` with vLLM's function for the backend, which may rewrite them. Raises vLLM's
        errors."""

    @abstractmethod
    def copy_grammar(self, native: Any) -> Any:
        """Return an independent copy of a grammar. For a backend that cannot fork, `native` is in its initial state."""

    def lacking(self, schema: Any) -> str | None:
        """Return the reason why vLLM would refuse a JSON schema for this backend before compiling it, or None."""
        return None

    def lacking_tokenizer(self, tokenizer: Any) -> str | None:
        """Return the reason why this backend cannot work with the model's tokenizer, or None."""
        return None

    def failure(self, native: Any) -> str | None:
        """Return the error inside a grammar whose methods do not raise it, or None."""
        return None

    def is_dead_end(self, failure: str) -> bool:
        """Return whether a `failure` only says that no token can follow."""
        return False

    def nbytes(self, native: Any, spec: str) -> int:
        """Return the approximate size of a grammar in bytes."""
        return BASE_NBYTES + 64 * len(spec)

    # The contract

    def supports(self, constraint: Constraint) -> Support:
        if (reason := self._refusal(constraint)) is not None:
            return Support(reason=reason)
        found = self._support(constraint)
        whitespace = constraint.spacing
        is_kept = whitespace == "any" if constraint.kind == "structural_tag" else whitespace in self.whitespace
        if whitespace is None or is_kept or found.refused:
            return found
        return replace(found, unenforced=found.unenforced | {"whitespace"})

    def _support(self, constraint: Constraint) -> Support:
        table = support_table(type(self)) if self.library else None
        if isinstance(constraint, JsonSchema):
            if table is not None:
                return table.support(constraint)
            names = frozenset(name for name in constraint.cached(keywords) if "+" not in name)
            return Support(enforced=names & self.enforced, unenforced=names - self.enforced)
        if isinstance(constraint, StructuralTag) and table is not None:
            return table.support(constraint, tag_schemas(constraint.parsed))
        if isinstance(constraint, Regex):
            if table is not None:
                return table.support_of_regex(constraint)
            unknown = frozenset(f"regex:{detail}" for detail in pattern_details(constraint.source()))
            return Support(enforced=frozenset({constraint.kind}), unenforced=unknown)
        return Support(enforced=frozenset({constraint.kind}))

    def compile(self, constraint: Constraint) -> StockCompiled:
        kind = constraint.kind
        if kind not in self.kinds:
            raise UnsupportedGrammar(f"vLLM's backend {self.backend} has no constraints of kind {kind}", feature=kind)
        params = self._params(constraint)
        if (reason := self._refusal(constraint)) is not None:
            raise UnsupportedGrammar(reason, feature=kind)
        native, spec = self._compile(kind, params)
        if (error := self.failure(native)) is not None and not self.is_dead_end(error):
            self._refuse(kind, error)
        compiled = StockCompiled(self, native, self._rows(constraint), self.nbytes(native, spec))
        try:
            compiled.matcher(self.vocabulary.stop_token_ids).fill_bitmask(allocate(1, self.vocabulary.logits_width), 0)
        except DeadEnd as error:
            raise InvalidGrammar("no text of this vocabulary matches the constraint") from error
        return compiled

    def close(self) -> None:
        if self._built is not None:
            self._built.destroy()

    # Parts

    def _refusal(self, constraint: Constraint) -> str | None:
        """Return the reason why vLLM would not pass the constraint to this backend, as far as known without compiling,
        or None."""
        reason = self.lacking_tokenizer(self._server.tokenizer)
        if reason is not None or not isinstance(constraint, JsonSchema):
            return reason
        try:
            constraint.cached(check_schema)
        except InvalidGrammar as error:
            return str(error)
        return self.lacking(constraint.parsed)

    def _params(self, constraint: Constraint) -> Any:
        """Return ``SamplingParams`` with the constraint."""
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        kind, source = constraint.kind, constraint.source()
        given: dict[str, Any]
        if isinstance(constraint, JsonSchema):
            constraint.cached(check_schema)
            if constraint.parsed is False:
                raise InvalidGrammar("the schema `false` allows nothing")
        match kind:
            case "json_schema":  # vLLM does not accept boolean schemas
                given = {"json": "{}" if source == "true" else source}
            case "json_object":
                given = {"json_object": True}
            case "choice":
                given = {"choice": json.loads(source)}
            case "regex":
                if "\x00" in source:
                    raise UnsupportedGrammar("vLLM takes no regular expression with a NUL character", feature=kind)
                given = {"regex": source}
            case "structural_tag":
                given = {"structural_tag": source}
            case _:
                self._check_dialect(source, kind)
                given = {"grammar": source}
        return SamplingParams(structured_outputs=StructuredOutputsParams(**given))

    def _check_dialect(self, source: str, kind: str) -> None:
        """Raise `UnsupportedGrammar` if vLLM, which guesses the dialect, would guess wrong."""
        from vllm.v1.structured_output.utils import grammar_is_likely_lark

        if not source.strip():
            raise InvalidGrammar("the grammar is empty")
        guessed = "lark" if grammar_is_likely_lark(source) else "ebnf"
        if kind != f"grammar:{guessed}":
            raise UnsupportedGrammar(f"vLLM takes this grammar for {guessed}, which it is not said to be", feature=kind)

    def _compile(self, kind: str, params: Any) -> tuple[Any, str]:
        from vllm.v1.structured_output.request import get_structured_output_key

        backend = self._backend()
        try:
            self.validate(params, self._server.tokenizer)
            request_type, spec = get_structured_output_key(params.structured_outputs)
            native = backend.compile_grammar(request_type, spec, {self._server.tokenizer.eos_token_id})
        except Exception as error:
            self._refuse(kind, str(error), error)
        return native, spec

    def _refuse(self, kind: str, said: str, error: Exception | None = None) -> NoReturn:
        """Raise the error of a refused constraint. Schemas were validated before, so the backend does not support
        them."""
        said = " ".join(said.split())[:MAX_MESSAGE] or type(error).__name__
        message = f"vLLM's backend {self.backend}: {said}"
        if kind in ("json_schema", "json_object", "structural_tag") or _UNSUPPORTED.search(said):
            raise UnsupportedGrammar(message, feature=kind) from error
        raise InvalidGrammar(message) from error

    def _backend(self) -> Any:
        with self._lock:
            if self._built is None:
                server = self._server
                # a tokenizer may have more tokens than the logits, and some backends fill masks that wide
                width = max(self.vocabulary.logits_width, len(server.tokenizer))
                self._built = self.make(_flexible(server.vllm_config), server.tokenizer, width)
            return self._built

    def _rows(self, constraint: Constraint) -> MaskLayout:
        num_words = self._backend().allocate_token_bitmask(1).shape[1]
        tokens = self.vocabulary.tokens
        specials = constraint.kind.startswith(WITH_SPECIALS)
        is_json = constraint.kind in ("json_schema", "json_object")
        possible = np.zeros(num_words * 32, dtype=np.uint8)
        known = [bool(token) or specials for token in tokens][: possible.size]
        if is_json:
            known = [is_known and not _CONTROL.search(token) for is_known, token in zip(known, tokens, strict=False)]
        possible[: len(known)] = known
        words: NDArray[np.int32] = np.packbits(possible, bitorder="little").view("<i4").astype(np.int32)
        rule = ahead = None
        if is_json:
            kept = constraint.spacing in self.whitespace
            rule = self._rules[constraint.spacing if kept and constraint.spacing else "any"]
            rule.prepare()
            if "fork" in self.capabilities and names_may_run_out(constraint):
                ahead = rule.ahead()
        return MaskLayout(words, self._server.tokenizer.eos_token_id, rule, ahead)


def _flexible(vllm_config: Any) -> Any:
    """Return a configuration in which backends allow any white space: `WritingRule` restricts it per request."""
    if not vllm_config.structured_outputs_config.disable_any_whitespace:
        return vllm_config
    changed = copy.copy(vllm_config)
    changed.structured_outputs_config = copy.copy(vllm_config.structured_outputs_config)
    changed.structured_outputs_config.disable_any_whitespace = False
    return changed
