"""The engine: takes prompts, returns results."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import ExitStack
from dataclasses import replace
from functools import partial, wraps
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypeVar, Unpack

from guideway.api.options import Range, mismatch, short_repr
from guideway.api.types import FinishReason, GenerationResult, SamplingParams
from guideway.api.vocabulary import Vocabulary
from guideway.errors import (
    GuidewayError,
    InvalidRequest,
    UnsupportedCapability,
    WorkerLost,
    contain,
    text_of,
)
from guideway.plugins import Plugins
from guideway.plugins.hooks import observe

from guideway_engine.config import EngineArguments, EngineConfig, config_of
from guideway_engine.errors import EngineBusy, EngineClosed, QueueFull
from guideway_engine.settings import DECODE
from guideway_engine.task_calls import TaskCalls
from guideway_engine.workflows.choosing import open_workflow

if TYPE_CHECKING:
    from guideway.runtime.work.threads import Threads

    from guideway_engine.generation import Generation
    from guideway_engine.labels import LabelScores
    from guideway_engine.prompts import Message, Prompt, Tool
    from guideway_engine.scheduling.sequence import SequenceGroup, SequenceState
    from guideway_engine.workflows.serving import Serving

__all__ = ["Engine", "EngineBusy", "EngineClosed", "QueueFull"]

log = logging.getLogger(__name__)

REQUEST_ID = Annotated[str, Range(1)] | None
SECONDS = Annotated[float, Range(0)]

P = ParamSpec("P")
R = TypeVar("R")


def _by_one_thread(method: Callable[Concatenate[Engine, P], R]) -> Callable[Concatenate[Engine, P], R]:
    """Restrict `method` to one thread at a time, which may call other methods inside. Other threads get `EngineBusy`
    and do not wait: taking turns, two threads would each drive the other's requests."""

    @wraps(method)
    def guarded(self: Engine, /, *args: P.args, **kwargs: P.kwargs) -> R:
        driver, me = self._driver, get_ident()
        inside = driver.get("thread") == me
        try:  # an interrupt may come after any call below, so ask the dict itself at the end
            if driver.setdefault("thread", me) != me:
                raise EngineBusy(
                    "another thread is using this engine, but an Engine serves one thread at a time; for several "
                    "threads, or to abort from another thread, use guideway.AsyncEngine"
                )
            return method(self, *args, **kwargs)
        finally:
            if not inside and driver.get("thread") == me:
                del driver["thread"]

    return guarded


class Engine(TaskCalls):
    """Runs a ``transformers`` model: decodes with a causal language model under constraints and logit modifiers, or
    embeds, reranks or classifies with an encoder.

    The model's files, or `EngineConfig.workflow`, decide which; calls of another workflow raise
    `UnsupportedCapability`. Only the modules of the chosen workflow are imported, so this module imports the modules
    for decoding inside functions.

    ``Engine("demo", max_num_seqs=8)`` takes a model and the other fields of `EngineConfig`; ``Engine(config)`` takes a
    whole configuration. Raises `InvalidConfiguration` or `PluginError` if the engine cannot be built, and TypeError for
    an unknown setting. Only one thread can use it at a time, others get `EngineBusy`; use `AsyncEngine` for several
    threads. A hook may submit (without waiting) and abort requests, but not step. If a step is interrupted, for example
    by KeyboardInterrupt, unfinished requests continue with the next step.
    """

    def __init__(self, model: str | os.PathLike[str] | EngineConfig, **settings: Unpack[EngineArguments]) -> None:
        self.config = config = config_of(model, settings)
        self._ids = itertools.count()
        self._arrivals = itertools.count()
        self._closed = False
        self._stepping = False
        self._driver: dict[str, int] = {}
        """Thread that is inside, under the key "thread"; `setdefault` tests and sets it atomically."""
        plugins = Plugins(settings=config.plugins)
        self._serving = open_workflow(config, plugins)
        if self._serving is None:
            self._open_decoder(plugins)

    def _open_decoder(self, plugins: Plugins) -> None:
        from guideway_engine.decoding.parts import make_decoder

        decoder = make_decoder(self.config, plugins, self._finished)
        self._inputs = decoder.inputs
        self._requests = decoder.requests
        self._scheduler = decoder.scheduler
        self._runtime = decoder.assembled.runtime
        self._hooks = decoder.assembled.hooks
        self._executor = decoder.assembled.executor
        self._has_chat_template = decoder.assembled.prompts.has_chat_template

    def _start_hosts(self) -> None:
        """Start the grammar hosts in the background, so that the first constraint does not wait for them. An
        `AsyncEngine` does this itself. Does nothing if no hosts are used."""
        if self._serving is None:
            self._runtime.start_hosts()

    @property
    def has_chat_template(self) -> bool:
        """True if the model has a chat template, so that it takes chat messages as prompts. Raises
        `UnsupportedCapability` unless this engine generates text."""
        self._check_decodes()
        return self._has_chat_template

    @property
    def workflow(self) -> str:
        """Name of the active workflow, for example `decode`."""
        return DECODE if self._serving is None else self._serving.workflow.name

    @property
    def vocabulary(self) -> Vocabulary:
        """Tokens of the model. Raises `UnsupportedCapability` unless this engine generates text."""
        self._check_decodes()
        return self._runtime.context.vocabulary

    @_by_one_thread
    def generate(
        self,
        prompts: str | Mapping[str, Any] | Sequence[Prompt | Mapping[str, Any]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Tool] | None = None,
        tenants: str | Sequence[str] = "",
        on_result: Callable[[int, GenerationResult], None] | None = None,
    ) -> list[GenerationResult]:
        """Return one result per prompt, in order. A refused prompt has `FinishReason.REFUSED`, a failed one
        `FinishReason.INTERNAL_ERROR`, both with their error; the others are not affected.

        A prompt may also be a mapping with the keys of a line of ``guideway generate --input``: ``{"prompt": ...,
        "schema": ..., "max_tokens": 5}``. Its keys override `params` and `tenants`; its ``id`` is the `request_id` of
        the result. An unknown key refuses the prompt.

        `params` and `tenants` are one value for all prompts or a list with one per prompt. `tools` apply to all
        prompts, which must be chat messages: the chat template describes the tools to the model. To force a tool call,
        add a constraint. `on_result` is called with the index and result of each prompt as it ends.

        An error in one prompt, or in its item of `params` or `tenants`, is in its result. Raises `InvalidRequest` if an
        argument is wrong for all prompts: `prompts` is not a list, `params` is neither `SamplingParams` nor a list,
        `tenants` is neither a string nor a list, a list has another length, or `tools` are invalid. Raises
        `EngineClosed` and `EngineBusy` too.
        """
        from guideway_engine.entries import read_entry
        from guideway_engine.prompts import BYTES, read_tools
        from guideway_engine.scheduling.sequence import refusal

        self._check_open()
        is_one = isinstance(prompts, str) or (isinstance(prompts, Mapping) and "prompt" in prompts)
        many: Sequence[Any] = [prompts] if is_one else prompts  # type: ignore[assignment]
        if not isinstance(many, Sequence) or isinstance(many, BYTES):
            raise InvalidRequest(f"prompts must be a list of prompts, not {type(many).__name__}", field="prompts")
        if on_result is not None and not callable(on_result):
            raise InvalidRequest(f"on_result must be a function, not {short_repr(on_result)}", field="on_result")
        described = read_tools(tools)
        each_params = _one_each(SamplingParams() if params is None else params, SamplingParams, many, "params")
        each_tenant = _one_each(tenants, str, many, "tenants")
        results: list[GenerationResult | None] = [None] * len(many)
        pending: dict[str, int] = {}
        ids: set[str] = set()
        ended: list[GenerationResult] = []

        def keep(index: int, result: GenerationResult) -> None:
            results[index] = result
            if on_result is not None:
                on_result(index, result)

        with ExitStack() as interrupted:  # after an interrupt the caller has no handle on these requests
            for index, given in enumerate(zip(many, each_params, each_tenant, strict=True)):
                request_id = self._new_id()
                try:
                    entry = read_entry(*given, request_id)
                    request_id = entry.request_id
                    if request_id in ids:
                        raise InvalidRequest(f"two prompts have the id {request_id!r}; give each its own", field="id")
                except InvalidRequest as error:
                    keep(index, refusal(request_id, error))
                    continue
                ids.add(request_id)
                while not self.has_room(entry.params):
                    self._step_and_collect(pending, ended, keep)
                try:
                    group = self._admit(
                        entry.prompt,
                        entry.params,
                        tools=described,
                        tenant=entry.tenant,
                        request_id=request_id,
                        inbox=ended,
                    )
                    self._enter(group)
                except GuidewayError as error:
                    keep(index, refusal(request_id, error))
                else:
                    interrupted.callback(self._scheduler.end_group, group, FinishReason.ABORT)
                    pending[request_id] = index
            while pending:
                self._step_and_collect(pending, ended, keep)
        return [result for result in results if result is not None]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Tool] | None = None,
        tenants: str | Sequence[str] = "",
        on_result: Callable[[int, GenerationResult], None] | None = None,
    ) -> list[GenerationResult]:
        """Generate for conversations. `messages` is one conversation, which is a list of messages (``{"role": ...,
        "content": ...}``) for the model's chat template, or a list of conversations. Returns one result each, in order.
        Raises `InvalidRequest` if it is neither, and the errors of `generate`."""
        from guideway_engine.prompts import conversations

        return self.generate(conversations(messages), params, tools=tools, tenants=tenants, on_result=on_result)

    def score(self, prompt: Prompt, labels: Sequence[str], *, tenant: str = "") -> LabelScores:
        """Return the log-probability of each label as a continuation of `prompt`, their softmax, and the number of
        tokens of each label. All are computed in one call of `generate`.

        Raises `InvalidRequest` if prompt or labels are invalid, `LimitExceeded` if they are longer than the context,
        and the errors of `generate`.
        """
        from guideway_engine.labels import SCORING, label_tokens, scores_of

        self._check_open()
        _check("tenant", tenant, str)
        tokens = label_tokens(labels, self.vocabulary)
        ids = self._inputs.token_ids(prompt)
        if not ids:
            raise InvalidRequest("the prompt has no tokens that labels could continue", field="prompt")
        results = self.generate([[*ids, *its_own] for its_own in tokens], SCORING, tenants=tenant)
        return scores_of(labels, tokens, results)

    @_by_one_thread
    def submit(
        self,
        prompt: Prompt | Mapping[str, Any],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Tool] | None = None,
        tenant: str = "",
        request_id: str | None = None,
        wait: bool = True,
    ) -> Generation:
        """Start one request and return its `Generation`, which yields its text when iterated. `prompt` may be a mapping
        as in `generate`.

        With `wait` the call returns once the constraint is compiled, while other requests continue; otherwise errors of
        the compilation are in the result. `tools` as in `generate`. `request_id` appears in the result and in hooks;
        None: one is generated. Raises `InvalidRequest` if the request is refused, `PluginError` if a plugin failed,
        `QueueFull` and `EngineClosed`.
        """
        from guideway_engine.decoding.requests import demand
        from guideway_engine.entries import read_entry

        self._check_open()
        _check("request_id", request_id, REQUEST_ID)
        _check("wait", wait, bool)
        entry = read_entry(prompt, params, tenant, self._new_id() if request_id is None else request_id)
        params = entry.params
        if not self.has_room(params):
            priority, num_sequences = demand(params)
            raise QueueFull(
                f"{self._scheduler.num_waiting_at(priority)} sequences of priority {short_repr(priority)} or higher "
                f"are waiting, the request has {num_sequences}, and max_waiting is {self.config.max_waiting}; try "
                "again when some have started"
            )
        group = self._admit(entry.prompt, params, tools=tools, tenant=entry.tenant, request_id=entry.request_id)
        generation = self._enter(group)
        if wait:
            try:
                self._await_compilation(group)
            except BaseException:  # the caller gets no handle on it
                self._scheduler.end_group(group, FinishReason.ABORT)
                raise
        return generation

    def _admit(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        *,
        tools: Sequence[Tool] | None = None,
        tenant: str,
        request_id: str,
        arrival: int | None = None,
        inbox: list[GenerationResult] | None = None,
    ) -> SequenceGroup:
        """Check and tokenize one request, and begin to compile its constraint. Call `_enter` to run it, or `_withdraw`
        to drop it.

        For hosts that must not block the thread that decodes: may be called from several threads at once. `arrival` is
        its `_new_arrival` if it arrived earlier. Its result is also put into `inbox`. Raises the errors of `submit`.
        """
        from guideway.objects import constraint_of, is_type, parse

        self._check_open()
        arrival = self._new_arrival() if arrival is None else arrival
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise InvalidRequest(f"params must be SamplingParams, not {type(params).__name__}", field="params")
        parse_answer, of_type = None, False
        if params.constraint is not None:
            of_type = is_type(params.constraint)
            parse_answer = partial(parse, params.constraint)
            params = replace(params, constraint=constraint_of(params.constraint))
        submission = self._inputs.check(prompt, params, tools=tools, tenant=tenant, request_id=request_id)
        inbox = [] if inbox is None else inbox
        return self._requests.prepare(submission, arrival=arrival, inbox=inbox, parse=parse_answer, of_type=of_type)

    @property
    def _admission_threads(self) -> Threads:
        """Threads in which hosts can call `_admit` concurrently with steps."""
        return self._runtime.admission_threads

    def check_health(self) -> None:
        """Raise `Unhealthy` if valid requests are being refused, for example because no compiling thread is left, no
        grammar host or worker can be started, or a part of the workflow is broken; and `EngineClosed`. For health
        probes; may be called from any thread."""
        self._check_not_closed()
        if self._serving is not None:
            self._serving.check_health()
        else:
            self._runtime.check_health()
            self._scheduler.check_health()

    def _new_arrival(self) -> int:
        """Return the arrival number for a new request. Waiting requests with lower numbers run first. May be called
        from any thread."""
        return next(self._arrivals)

    @_by_one_thread
    def _enter(self, group: SequenceGroup) -> Generation:
        """Start an admitted request."""
        from guideway_engine.generation import Generation

        try:
            self._check_open()
            observe(self._hooks.request_started, request=group.request)
        except BaseException:
            self._withdraw(group)
            raise
        self._scheduler.add(group)
        return Generation(self, group)

    def _withdraw(self, group: SequenceGroup) -> None:
        """Drop an admitted request that will not run. May be called from any thread."""
        self._requests.withdraw(group.admission)

    @_by_one_thread
    def step(self, *, timeout: float = 0.1) -> None:
        """Run one step of every running request. If no request can continue until a constraint is compiled, a text is
        judged or a lost worker is restarted, wait for that, at most `timeout` seconds. Does nothing once the engine is
        closed."""
        self._check_decodes()
        _check("timeout", timeout, SECONDS)
        if self._stepping:
            raise EngineBusy("a step is running, and code inside it, such as a hook, called step again")
        try:
            self._stepping = True
            self._scheduler.step()
        finally:
            self._stepping = False
        if pending := self._scheduler.awaited():
            wait(pending, timeout, return_when=FIRST_COMPLETED)

    @_by_one_thread
    def has_room(self, params: SamplingParams | None = None, beside: Mapping[int, int] | None = None) -> bool:
        """Return whether a request with these parameters may be queued now; if not, `submit` raises `QueueFull`. True
        for a request with more sequences than `max_waiting`, which is refused at once. `beside` is the number of
        sequences of each priority that are about to be queued."""
        from guideway_engine.decoding.requests import demand

        self._check_decodes()
        priority, num_sequences = demand(params)
        num_others = sum(n for theirs, n in (beside or {}).items() if theirs <= priority)
        most = self.config.max_waiting
        return num_sequences > most or self._scheduler.num_waiting_at(priority) + num_others + num_sequences <= most

    def has_work(self) -> bool:
        """Return whether any generation request has not ended."""
        return self._serving is None and self._scheduler.has_work()

    def is_waiting(self) -> bool:
        """Return whether no request can continue until a constraint is compiled, a text is judged or a lost worker is
        restarted."""
        return self._serving is None and bool(self._scheduler.awaited())

    @_by_one_thread
    def abort(self, generation: Generation) -> None:
        """End a request with its present output. Raises `InvalidRequest` if it belongs to another engine."""
        self._check_own(generation)
        self._scheduler.end_group(generation._group, FinishReason.ABORT)

    @_by_one_thread
    def fork(self, generation: Generation, index: int = 0) -> int:
        """See `Generation.fork`."""
        self._check_open()
        self._check_own(generation)
        for sequence in generation._group.sequences:
            if sequence.index == index:
                return self._scheduler.fork(sequence).index
        raise InvalidRequest(f"there is no output {index!r} to fork", field="index")

    def answer_start(self, sequence: SequenceState) -> int | None:
        """Return the position in the text of a sequence where the answer begins, for `Chunk.answer_start`."""
        if sequence.completion is not None:
            return sequence.completion.answer_start
        start = self._runtime.answer_start(sequence.slots[0]) if sequence.slots else None
        return None if start is None else sequence.answer_start(self.vocabulary.decode(sequence.output[:start]))

    @_by_one_thread
    def call_workers(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call ``name.method`` of a worker mixin on every worker and return the results by rank. Raises
        `InvalidRequest` if there is no such mixin or method, or an argument cannot be sent to the workers;
        `PluginError` for an error of the method; and `WorkerLost` if a worker is lost (the next call waits for new
        ones)."""
        self._check_open()
        if not self._stepping:  # a hook may call in the middle of a step, which then continues with the workers it has
            self._scheduler.await_workers()
        try:
            call = self._executor.submit("call", method, args, kwargs)
        except GuidewayError:
            raise
        except BaseException as error:  # any error raised by a foreign class while pickling
            contain(error)
            raise InvalidRequest(
                f"the arguments for {method} cannot be sent to the workers: {text_of(error)}; use plain values, and "
                "objects that pickle",
                field="args",
            ) from error
        try:
            results: list[Any] = call.results()
        except WorkerLost as error:
            self._scheduler.record_worker_loss(error)
            raise
        return results

    @_by_one_thread
    def close(self, error: GuidewayError | None = None) -> None:
        """End every request with `FinishReason.ABORT`, or with `error` and `FinishReason.INTERNAL_ERROR` if it is
        given; then stop compiling and close the workers. Closing twice is fine."""
        self._closed = True
        if self._serving is not None:
            self._serving.close()
            return
        reason = FinishReason.ABORT if error is None else FinishReason.INTERNAL_ERROR
        with ExitStack() as each:
            each.callback(self._executor.close)
            each.callback(self._runtime.close)
            each.callback(self._scheduler.end_all, reason, error)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _new_id(self) -> str:
        """Return a new request id."""
        return f"request-{next(self._ids)}"

    def _check_own(self, generation: Generation) -> None:
        from guideway_engine.generation import Generation

        if not isinstance(generation, Generation):
            raise InvalidRequest(
                f"generation must be a Generation, as submit returns it, not {type(generation).__name__}",
                field="generation",
            )
        if generation._engine is not self:
            raise InvalidRequest("this generation belongs to another engine", field="generation")

    def _check_open(self) -> None:
        self._check_not_closed()
        self._check_decodes()

    def _check_not_closed(self) -> None:
        if self._closed:
            raise EngineClosed("the engine is closed and takes no more requests; create a new one")

    def _check_decodes(self) -> None:
        """Raise `UnsupportedCapability` unless this engine generates text. May be called from any thread."""
        if self._serving is not None:
            raise UnsupportedCapability(
                f"this engine generates no text: it runs the workflow {self._serving.workflow.name!r} with "
                f"{self._serving.architecture}; call {self._serving.calls}",
                field="workflow",
            )

    def _served(self, task: str) -> Serving:
        self._check_not_closed()
        if self._serving is None:
            raise UnsupportedCapability(
                f"this engine generates text, with generate and chat; to {task}, open one with workflow={task!r} and a "
                "model that it serves",
                field="workflow",
            )
        return self._serving

    def _step_and_collect(
        self,
        pending: dict[str, int],
        ended: list[GenerationResult],
        keep: Callable[[int, GenerationResult], None],
    ) -> None:
        self.step()
        for result in ended:
            keep(pending.pop(result.request_id), result)
        ended.clear()

    def _await_compilation(self, group: SequenceGroup) -> None:
        """Drive the engine until the request can start. Raises its error if it is refused or fails before that."""
        from guideway_engine.scheduling.sequence import reason_of

        while group.result is None and not group.admission.ready():
            self.step()
        compilation = group.admission.compilation
        if group.result is None and compilation is not None:
            error = compilation.exception()
            if isinstance(error, GuidewayError):
                self._scheduler.end_group(group, reason_of(error), error)
        if group.result is not None and group.result.error is not None:
            raise group.result.error

    def _finished(self, group: SequenceGroup) -> None:
        result = group.result
        assert result is not None
        for output in result.outputs:
            if output.finish_reason is FinishReason.INTERNAL_ERROR:
                observe(self._hooks.request_failed, request=group.request, error=output.error)
                break
        observe(self._hooks.request_finished, request=group.request, result=result)


def _check(name: str, value: object, hint: Any) -> None:
    """Raise `InvalidRequest` for an argument of another type than `hint`."""
    if wrong := mismatch(name, value, hint):
        raise InvalidRequest(wrong, field=name)


def _one_each(value: Any, one: type, prompts: Sequence[Any], field: str) -> Sequence[Any]:
    """Return `value` as a list with one item per prompt, repeating a single `one`. Raises `InvalidRequest`."""
    from guideway_engine.prompts import BYTES

    if isinstance(value, one):
        return [value] * len(prompts)
    if isinstance(value, str | BYTES) or not isinstance(value, Sequence):
        raise InvalidRequest(
            f"{field} must be one {one.__name__} for all prompts, or a list with one for each, not "
            f"{type(value).__name__}",
            field=field,
        )
    if len(value) != len(prompts):
        raise InvalidRequest(f"there are {len(prompts)} prompts but {len(value)} {field}", field=field)
    return value
