"""The engine: prompts in, results out."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from types import TracebackType
from typing import Any, TypeAlias

from guideway.api.errors import GuidewayError, InvalidRequest, LimitExceeded
from guideway.api.types import FinishReason, GenerationResult, Request, SamplingParams
from guideway.api.vocabulary import Vocabulary
from guideway.engine.assembly import assemble
from guideway.engine.config import EngineConfig
from guideway.engine.scheduler import Scheduler
from guideway.engine.sequence import Sequence, reason_of, refusal
from guideway.plugins import Hook

__all__ = ["Engine", "Generation", "Prompt"]

log = logging.getLogger(__name__)

Prompt: TypeAlias = str | SequenceOf[int] | SequenceOf[Mapping[str, str]]
"""Text, token ids, or chat messages (``{"role": ..., "content": ...}``) for the model's chat template."""


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
        """New text, in whole characters, until the end. Raises the request's error if it turns out to be refused."""
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
        result = self._sequence.result
        if result is not None and result.finish_reason is FinishReason.REFUSED and result.error is not None:
            raise result.error

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
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        parts = assemble(config)
        self._tokenizer = parts.tokenizer
        self._runtime = parts.runtime
        self._hooks = parts.hooks
        self._max_model_len = parts.max_model_len
        self._ids = itertools.count()
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
        it ends. Raises `InvalidRequest` only if there is not one `SamplingParams` per prompt.
        """
        many: SequenceOf[Any] = [prompts] if isinstance(prompts, str) else prompts
        each = [params or SamplingParams()] * len(many) if not isinstance(params, SequenceOf) else params
        if len(each) != len(many):
            raise InvalidRequest(f"there are {len(many)} prompts but {len(each)} sampling params", field="params")
        results: list[GenerationResult | None] = [None] * len(many)
        pending: dict[int, Sequence] = {}

        def keep(index: int, result: GenerationResult) -> None:
            results[index] = result
            if on_result is not None:
                on_result(index, result)

        try:
            for index, (prompt, wanted) in enumerate(zip(many, each, strict=True)):
                request_id = f"request-{next(self._ids)}"
                try:
                    pending[index] = self._admit(request_id, prompt, wanted)
                except GuidewayError as error:
                    keep(index, refusal(request_id, error))
            while pending:
                for index, sequence in list(pending.items()):
                    if sequence.result is not None:
                        del pending[index]
                        keep(index, sequence.result)
                if pending:
                    self.step()
        finally:  # interrupted: nobody will ask for these again
            for sequence in pending.values():
                self._scheduler.end(sequence, FinishReason.ABORT)
        return [result for result in results if result is not None]

    def submit(self, prompt: Prompt, params: SamplingParams | None = None) -> Generation:
        """Start one request; iterate the `Generation` for its text. Waits until its constraint is compiled, while
        other requests go on. Raises `InvalidRequest` if it is refused, `PluginError` if a plugin failed."""
        sequence = self._admit(f"request-{next(self._ids)}", prompt, params or SamplingParams())
        while not sequence.admission.ready():
            self.step()
        compilation = sequence.admission.compilation
        error = None if compilation is None else compilation.exception()
        if isinstance(error, GuidewayError):
            self._scheduler.end(sequence, reason_of(error), error)
            raise error
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
        """Stop compiling. Requests that have not ended are left where they are."""
        self._runtime.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _admit(self, request_id: str, prompt: Prompt, params: SamplingParams) -> Sequence:
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
        longest = max(len(request.prompt_token_ids), *(len(c.prompt_token_ids) for c in admission.companions), 0)
        try:
            self._check_companions(admission.companions, longest)
        except InvalidRequest:
            self._runtime.abandon(admission)
            raise
        room = self._max_model_len - longest
        sequence = Sequence(
            admission,
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            stop_token_ids=self.vocabulary.stop_token_ids | frozenset(params.stop_token_ids),
        )
        self._observe(self._hooks.request_started, request=request)
        self._scheduler.add(sequence)
        return sequence

    def _check_companions(self, companions: SequenceOf[object], longest: int) -> None:
        if 1 + len(companions) > self.config.max_num_seqs:
            raise LimitExceeded(
                f"the request needs {len(companions)} companion sequences beside it, but the engine runs "
                f"{self.config.max_num_seqs} sequences at once (max_num_seqs)",
                field="modifiers",
            )
        if longest >= self._max_model_len:
            raise LimitExceeded(
                f"a companion's prompt has {longest} tokens, but the context holds {self._max_model_len}",
                field="modifiers",
            )

    def _tokenize(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            try:
                return list(self._tokenizer(prompt).input_ids)
            except (TypeError, UnicodeError) as error:
                raise InvalidRequest(f"the prompt cannot be tokenized: {error}", field="prompt") from error
        if not isinstance(prompt, SequenceOf):
            raise InvalidRequest(
                f"a prompt is text, a list of token ids or a list of chat messages, not {type(prompt).__name__}",
                field="prompt",
            )
        if all(isinstance(item, int) for item in prompt):
            return list(prompt)  # type: ignore[arg-type]
        return self._apply_chat_template(prompt)

    def _apply_chat_template(self, messages: SequenceOf[Any]) -> list[int]:
        if self._tokenizer.chat_template is None:
            raise InvalidRequest("this model has no chat template; give the prompt as text", field="prompt")
        if not all(isinstance(m, Mapping) and {"role", "content"} <= m.keys() for m in messages):
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
            except Exception:
                log.warning("observer %s failed", hook.plugin, exc_info=True)
