"""The engine: prompts in, results out."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import ExitStack
from numbers import Integral
from types import TracebackType
from typing import Any, TypeAlias

from guideway.api.errors import GuidewayError, InvalidRequest, contain
from guideway.api.types import FinishReason, GenerationResult, Request, SamplingParams
from guideway.api.vocabulary import Vocabulary
from guideway.engine.assembly import assemble
from guideway.engine.config import EngineConfig
from guideway.engine.scheduler import Scheduler
from guideway.engine.sequence import Sequence, reason_of, refusal
from guideway.plugins import Hook

__all__ = ["Engine", "EngineClosed", "Generation", "Prompt"]

log = logging.getLogger(__name__)

Prompt: TypeAlias = str | SequenceOf[int] | SequenceOf[Mapping[str, str]]
"""Text, token ids, or chat messages (``{"role": ..., "content": ...}``) for the model's chat template."""

BYTES = bytes | bytearray | memoryview
"""Sequences of whole numbers, but not of token ids."""


class EngineClosed(GuidewayError):
    """The engine was closed and takes no more requests."""


class Generation:
    """One submitted request. Iterating drives the engine and yields text as it becomes final."""

    def __init__(self, engine: Engine, sequence: Sequence) -> None:
        self._engine = engine
        self._sequence = sequence

    @property
    def result(self) -> GenerationResult | None:
        """The result, once it has ended."""
        return self._sequence.result

    def __iter__(self) -> Iterator[str]:
        """New text, in whole characters, until the end. Raises the request's error if it is refused or fails."""
        shown = 0
        while True:
            ended = self._sequence.result is not None
            text = self._sequence.text
            if len(text) > shown:
                yield text[shown:]
                shown = len(text)
            if ended:
                break
            self._engine.step()
        if self._sequence.result is not None and self._sequence.result.error is not None:
            raise self._sequence.result.error

    def wait(self) -> GenerationResult:
        """Drive the engine until this request has ended."""
        while self._sequence.result is None:
            self._engine.step()
        return self._sequence.result

    def abort(self) -> None:
        """End it now; `result` then holds what there is."""
        self._engine.abort(self)


class Engine:
    """Decodes with a ``transformers`` causal language model under constraints and logit modifiers.

    Raises `InvalidConfiguration` or `PluginError` if the configuration cannot be had. Use by one thread at a time.
    Whatever interrupts a step, a KeyboardInterrupt say, requests that have not ended go on with the next one.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        parts = assemble(config)
        self._tokenizer = parts.tokenizer
        self._runtime = parts.runtime
        self._hooks = parts.hooks
        self._ids = itertools.count()
        self._closed = False
        self._scheduler = Scheduler(
            parts.runtime,
            parts.worker,
            max_prefill_tokens=config.max_prefill_tokens,
            num_draft_tokens=config.num_draft_tokens,
            on_finish=self._finished,
        )

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's tokens."""
        return self._runtime.context.vocabulary

    def generate(
        self,
        prompts: str | SequenceOf[Prompt],
        params: SamplingParams | SequenceOf[SamplingParams] | None = None,
        *,
        on_result: Callable[[int, GenerationResult], None] | None = None,
    ) -> list[GenerationResult]:
        """One result per prompt, in order, whatever happens to some of them: a refused prompt has
        `FinishReason.REFUSED`, a failed one `FinishReason.INTERNAL_ERROR`, both with their error.

        `params` is one for all or one per prompt. `on_result` is called with the index and result of each prompt as
        it ends. Raises `InvalidRequest` only if there is no list of prompts or not one `SamplingParams` for each, and
        `EngineClosed`.
        """
        self._check_open()
        many: SequenceOf[Any] = [prompts] if isinstance(prompts, str) else prompts
        if not isinstance(many, SequenceOf) or isinstance(many, BYTES):
            raise InvalidRequest(f"prompts must be a list of prompts, not {type(many).__name__}", field="prompts")
        if params is None:
            params = SamplingParams()
        each = params if isinstance(params, SequenceOf) else [params] * len(many)
        if len(each) != len(many):
            raise InvalidRequest(f"there are {len(many)} prompts but {len(each)} sampling params", field="params")
        results: list[GenerationResult | None] = [None] * len(many)
        pending: dict[str, int] = {}
        ended: list[GenerationResult] = []

        def keep(index: int, result: GenerationResult) -> None:
            results[index] = result
            if on_result is not None:
                on_result(index, result)

        with ExitStack() as interrupted:  # nobody will ask for these again
            for index, (prompt, wanted) in enumerate(zip(many, each, strict=True)):
                request_id = f"request-{next(self._ids)}"
                try:
                    sequence = self._admit(request_id, prompt, wanted, ended)
                except GuidewayError as error:
                    keep(index, refusal(request_id, error))
                else:
                    interrupted.callback(self._scheduler.end, sequence, FinishReason.ABORT)
                    pending[request_id] = index
            while pending:
                self.step()
                for result in ended:
                    keep(pending.pop(result.request_id), result)
                ended.clear()
        return [result for result in results if result is not None]

    def submit(self, prompt: Prompt, params: SamplingParams | None = None) -> Generation:
        """Start one request; iterate the `Generation` for its text. Waits until its constraint is compiled, while
        other requests go on. Raises `InvalidRequest` if it is refused, `PluginError` if a plugin failed, and
        `EngineClosed`."""
        if params is None:
            params = SamplingParams()
        sequence = self._admit(f"request-{next(self._ids)}", prompt, params, [])
        try:
            self._await_compilation(sequence)
        except BaseException:  # the caller will not have it
            self._scheduler.end(sequence, FinishReason.ABORT)
            raise
        return Generation(self, sequence)

    def step(self) -> None:
        """Bring every running request one step forward."""
        self._scheduler.step()

    def has_work(self) -> bool:
        """Whether any request has not ended."""
        return self._scheduler.has_work()

    def abort(self, generation: Generation) -> None:
        """End a request now, with what it has."""
        self._scheduler.end(generation._sequence, FinishReason.ABORT)

    def close(self) -> None:
        """End every request with `FinishReason.ABORT`, with what it has, and stop compiling. Closing twice is fine."""
        self._closed = True
        try:
            self._scheduler.end_all(FinishReason.ABORT)
        finally:
            self._runtime.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineClosed("the engine is closed and takes no more requests; make a new one")

    def _admit(
        self, request_id: str, prompt: Prompt, params: SamplingParams, inbox: list[GenerationResult]
    ) -> Sequence:
        self._check_open()
        if not isinstance(params, SamplingParams):
            raise InvalidRequest(f"params must be SamplingParams, not {type(params).__name__}", field="params")
        request = Request(
            request_id=request_id,
            prompt_token_ids=tuple(self._tokenize(prompt)),
            params=params,
            prompt=prompt if isinstance(prompt, str) else None,
        )
        admission = self._runtime.admit(request)
        request = admission.request
        prompts = [request.prompt_token_ids, *(companion.prompt_token_ids for companion in admission.companions)]
        room = self._runtime.context.max_model_len - max(map(len, prompts))
        sequence = Sequence(
            admission,
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            stop_token_ids=self.vocabulary.stop_token_ids | frozenset(request.params.stop_token_ids),
            inbox=inbox,
        )
        try:
            self._observe(self._hooks.request_started, request=request)
        except BaseException:
            self._runtime.abandon(admission)
            raise
        self._scheduler.add(sequence)
        return sequence

    def _await_compilation(self, sequence: Sequence) -> None:
        """Drive the engine until `sequence` could start. Raises what it was refused or failed with until then."""
        while sequence.result is None and not sequence.admission.ready():
            self.step()
        compilation = sequence.admission.compilation
        if sequence.result is None and compilation is not None:
            error = compilation.exception()
            if isinstance(error, GuidewayError):
                self._scheduler.end(sequence, reason_of(error), error)
        if sequence.result is not None and sequence.result.error is not None:
            raise sequence.result.error

    def _tokenize(self, prompt: Prompt) -> list[int]:
        try:
            return self._token_ids(prompt)
        except InvalidRequest:
            raise
        except BaseException as error:  # whatever a tokenizer, a template or a value of any type raises
            contain(error)
            raise InvalidRequest(
                f"the prompt cannot be tokenized: {type(error).__name__}: {error}", field="prompt"
            ) from error

    def _token_ids(self, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            return list(self._tokenizer(prompt).input_ids)
        if not isinstance(prompt, SequenceOf) or isinstance(prompt, BYTES):
            raise InvalidRequest(
                f"a prompt is text, a list of token ids or a list of chat messages, not {type(prompt).__name__}",
                field="prompt",
            )
        if prompt and all(isinstance(item, Mapping) for item in prompt):
            return self._apply_chat_template(prompt)
        for item in prompt:
            if not isinstance(item, Integral) or isinstance(item, bool):  # NumPy's integers are Integral
                raise InvalidRequest(
                    "a prompt that is a list holds token ids or chat messages, whole numbers or mappings; this one "
                    f"holds a value of type {type(item).__name__}",
                    field="prompt",
                )
        return [int(item) for item in prompt]

    def _apply_chat_template(self, messages: SequenceOf[Any]) -> list[int]:
        if self._tokenizer.chat_template is None:
            raise InvalidRequest("this model has no chat template; give the prompt as text", field="prompt")
        if not all({"role", "content"} <= message.keys() for message in messages):
            raise InvalidRequest("each chat message is a mapping with 'role' and 'content'", field="prompt")
        try:
            text = self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except Exception as error:  # whatever a template's own code raises
            raise InvalidRequest(f"the model's chat template refused the messages: {error}", field="prompt") from error
        return list(self._tokenizer(text, add_special_tokens=False).input_ids)

    def _finished(self, sequence: Sequence, result: GenerationResult) -> None:
        if result.finish_reason is FinishReason.INTERNAL_ERROR:
            self._observe(self._hooks.request_failed, request=sequence.request, error=result.error)
        self._observe(self._hooks.request_finished, request=sequence.request, result=result)

    def _observe(self, hooks: SequenceOf[Hook], **arguments: object) -> None:
        """Tell observers; one that raises stops neither the request nor the others."""
        for hook in hooks:
            try:
                hook(**arguments)
            except BaseException as error:
                contain(error)
                log.warning("observer %s failed", hook.plugin, exc_info=True)
