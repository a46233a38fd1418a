"""The request processor of `decode`: turns checked submissions into sequences that the scheduler can run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from guideway.api.modifier import ModifierContext
from guideway.api.types import GenerationResult, Request, SamplingParams, Submission
from guideway.errors import InvalidRequest, LimitExceeded
from guideway.runtime.admission.admission import Admission
from guideway.runtime.admission.sampling import python_number
from guideway.runtime.runtime import Runtime

from guideway_engine.prompts import PromptReader, Read
from guideway_engine.scheduling.sequence import SequenceGroup
from guideway_engine.settings import EngineSettings

__all__ = ["DecodeRequests", "demand"]


class DecodeRequests:
    """Tokenizes checked submissions and begins to compile their constraints. May be called by several threads."""

    def __init__(self, prompts: PromptReader, runtime: Runtime, settings: EngineSettings) -> None:
        self._prompts = prompts
        self._runtime = runtime
        self._settings = settings

    def prepare(
        self,
        submission: Submission,
        *,
        arrival: int,
        inbox: list[GenerationResult],
        parse: Callable[[str], Any] | None,
        of_type: bool = False,
    ) -> SequenceGroup:
        """Return the sequences of a request. `parse` converts its answers to objects, of a type that the caller gave as
        constraint if `of_type`; the result is put into `inbox`. Raises `InvalidRequest`, or another error that refuses
        the request."""
        prompt = cast("Read", submission.prompt)  # created by `DecodeInputs`
        request = Request(
            request_id=submission.request_id,
            prompt_token_ids=self._prompts.tokenize(prompt, submission.tools),
            params=submission.params,
            prompt=prompt if isinstance(prompt, str) else None,
            tenant=submission.tenant,
        )
        admission = self._runtime.admit(request)
        try:
            return _group(
                admission,
                self._runtime.context,
                self._settings,
                arrival=arrival,
                inbox=inbox,
                parse=parse,
                verifies=_verifies(admission.request.params, of_type),
            )
        except BaseException:
            self.withdraw(admission)
            raise

    def withdraw(self, admission: Admission) -> None:
        """Release the resources of a prepared request that will not run."""
        for _ in range(admission.request.params.num_sequences):
            self._runtime.abandon(admission)


def _verifies(params: SamplingParams, of_type: bool) -> bool:
    """Return whether an answer that its type refuses is invalid. Raises `InvalidRequest` for retries if no output can
    be invalid."""
    checks = params.on_unenforced == "check"
    if params.max_retries and not checks and not of_type:
        raise InvalidRequest(
            f"max_retries is {params.max_retries}, but outputs are not checked with on_unenforced "
            f"{params.on_unenforced!r}; set on_unenforced to 'check', give a type as constraint, or remove max_retries",
            field="max_retries",
        )
    return of_type and (checks or params.max_retries > 0)


def _group(
    admission: Admission,
    context: ModifierContext,
    settings: EngineSettings,
    *,
    arrival: int,
    inbox: list[GenerationResult],
    parse: Callable[[str], Any] | None,
    verifies: bool,
) -> SequenceGroup:
    """Return the sequences of a request. `parse` converts its answers to objects. Raises `LimitExceeded` if there can
    never be room for them."""
    request, vocabulary = admission.request, context.vocabulary
    params = request.params
    if params.num_sequences > settings.max_waiting:
        raise LimitExceeded(
            f"the request has {params.num_sequences} sequences, but max_waiting allows only {settings.max_waiting}; "
            "ask for fewer, or raise max_waiting",
            field="n" if params.best_of is None else "best_of",
        )
    prompts = [request.prompt_token_ids, *(companion.prompt_token_ids for companion in admission.companions)]
    if len(prompts) > settings.max_num_seqs:
        raise LimitExceeded(
            f"the request needs {len(prompts) - 1} companion sequences besides its own, but only "
            f"{settings.max_num_seqs} sequences can run at once; raise max_num_seqs",
            field="modifiers",
        )
    room = context.max_model_len - max(map(len, prompts))
    if params.min_tokens > room:
        raise LimitExceeded(
            f"min_tokens is {params.min_tokens}, but the context has room for only {room} tokens after the prompt",
            field="min_tokens",
        )
    text = ""
    if params.echo:
        prompt = vocabulary.decode(list(request.prompt_token_ids)) + admission.allowed_prefix
        text = request.prompt or prompt.decode(errors="replace")
    stops = frozenset(params.stop_token_ids)
    return SequenceGroup(
        admission,
        arrival=arrival,
        max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
        stop_token_ids=stops if params.ignore_eos else stops | vocabulary.stop_token_ids,
        inbox=inbox,
        parse=parse,
        verifies=verifies,
        prompt_text=text,
    )


def demand(params: object) -> tuple[int, int]:
    """Return priority and number of sequences of a request whose parameters are not checked yet. Invalid values count
    as 0 and 1 until the request is refused."""
    if not isinstance(params, SamplingParams):
        return 0, 1
    priority, num_sequences = python_number(params.priority), python_number(params.num_sequences)
    return priority if isinstance(priority, int) else 0, num_sequences if isinstance(num_sequences, int) else 1
