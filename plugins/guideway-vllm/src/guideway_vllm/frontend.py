"""The front end, which tries each request before vLLM accepts it, so that errors become status 400.

A trial is admission and compilation. Where modifiers are configured it goes as far as the first token: matcher and
states of all modifiers. The engine core does not check again what a trial has checked.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import logging
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import cache, partial
from http import HTTPStatus
from importlib.metadata import entry_points
from typing import Any, TypeAlias, TypeVar

from guideway.api import (
    Constraint,
    GuidewayError,
    InvalidConfiguration,
    InvalidRequest,
    JsonObject,
    JsonSchema,
    PluginError,
    Request,
    Stage,
    Submission,
    UnsupportedCapability,
)
from guideway.errors import passable, printable
from guideway.plugins import Plugins
from guideway.runtime import Admission
from guideway.runtime.admission.open_requests import ShortBudget
from guideway.runtime.constraints.bans import Bans
from guideway.runtime.plan import placement

from guideway_vllm.answers import Judge
from guideway_vllm.bans import bans_of
from guideway_vllm.config import GuestConfig
from guideway_vllm.handover import Handover
from guideway_vllm.health import CoreHealth
from guideway_vllm.observers import Observers
from guideway_vllm.parts import build_runtime
from guideway_vllm.requests import (
    CARRIER,
    ON_UNENFORCED_KEY,
    PREFIX,
    carries_only,
    constraint_to_check,
    is_ours,
    request_of,
    short_budget_of,
)
from guideway_vllm.steps import ATTRIBUTE, RECORDS

__all__ = ["FrontEnd"]

log = logging.getLogger("vllm.guideway")

NOT_BESIDE_DRAWS = ("logprobs", "logprob_token_ids", "bad_words", "allowed_token_ids", "thinking_token_budget")
"""Parameters that only vLLM's own draw applies or reports."""


T = TypeVar("T")
Trial: TypeAlias = Generator[Admission, None, T]
"""A trial yields an admission when it waits for its compilation; any thread may resume it."""


class FrontEnd:
    """Admission for one ``InputProcessor``. Thread-safe."""

    def __init__(self, config: GuestConfig, vllm_config: Any) -> None:
        import vllm

        self._unchecked = _why_unchecked(vllm_config)
        if self._unchecked and config.on_unenforced == "check":
            raise InvalidConfiguration(f"on_unenforced is 'check', but {self._unchecked}", field="on_unenforced")
        plugins = Plugins(settings=config.plugins)
        self._config = config
        plan = config.plan(plugins)
        self._fingerprint = plan.fingerprint
        hooks = plugins.hooks()
        self.observers = Observers.of(hooks)
        self._tries_all = bool(
            config.modifiers or hooks.validate_submission or hooks.validate_request or self.observers
        )
        self._runtime = build_runtime(config, plugins, vllm_config, front_end=True)
        self._handover = None
        if vllm.envs.VLLM_ENABLE_V1_MULTIPROCESSING:
            self._handover = Handover(self._runtime.context.vocabulary, vllm_config)
        self._modifiers = {cls.name: cls for cls, _ in self._runtime.modifier_classes()}
        model = vllm_config.model_config
        self._diffusion = bool(getattr(model, "is_diffusion", False))
        self._processors = bool(model.logits_processors or entry_points(group="vllm.logits_processors"))
        self._watermark = getattr(vllm_config, "watermark_config", None) is not None
        self.strict_refuses = config.strict_refuses
        self._numbers = itertools.count()
        self._slot = threading.Lock()
        """Held while a request is in the only slot."""
        self.core_health = CoreHealth()
        self.ending = False
        """True once the server's shutdown has begun."""
        facts = [f"ledger in kv_transfer_params.{ATTRIBUTE}", placement(config.grammar_host, self._runtime)]
        if config.forced_tokens != "off":
            facts.append(f"forced_tokens={config.forced_tokens}, so without asynchronous scheduling")
        log.info("%s", plan.summary(f"vLLM {vllm.__version__}", *facts))

    @classmethod
    def of(cls, vllm_config: Any) -> FrontEnd | None:
        """Return the front end of a server; None if guideway is off. Raises `InvalidConfiguration` and
        `PluginError`."""
        config = GuestConfig.of(vllm_config)
        return None if config is None else cls(config, vllm_config)

    def start_hosts(self) -> None:
        """Start the grammar hosts of this process in the background, once it forks no more children."""
        self._runtime.start_hosts()

    @staticmethod
    def without_constraint(params: Any) -> Any:
        """Return `params` without the constraint, which vLLM would check by the rules of its own backends."""
        if getattr(params, "structured_outputs", None) is None:
            return params
        bare = copy.copy(params)
        bare.structured_outputs = None
        return bare

    def is_tried(self, params: Any) -> bool:
        """Return whether requests with these parameters are tried."""
        return hasattr(params, "structured_outputs") and (self._tries_all or is_ours(params))

    def admit(self, request: Any, text: str | None = None) -> None:
        """Try an ``EngineCoreRequest`` and prepare its parameters, in place, for the engine core. `text` is its prompt,
        if known. Raises ``VLLMValidationError`` for a request that cannot be served, and `PluginError` if a plugin
        failed."""
        if not self.is_tried(request.sampling_params):
            return
        with _raise_vllm_errors():
            trial = self._admit(request, text)
            for admission in trial:
                admission.wait(self._config.refuse_within)

    async def admit_async(self, request_id: str, make: Callable[[], Any], text: str | None, records: list[Any]) -> Any:
        """Build a request with `make`, `admit` it without blocking the event loop, and return it. Arguments for
        `report_start` are added to `records`."""

        def begin() -> tuple[Any, Trial[None], Admission | None]:
            made = make()
            trial = self._admit(made, text, records)
            return made, trial, _go_on(trial)

        with _raise_vllm_errors(over_network=request_id):
            made, trial, admission = await self._submit(begin)
            while admission is not None:
                await self._wait_for_compilation(admission)
                admission = await self._submit(partial(_go_on, trial))
        return made

    async def _wait_for_compilation(self, admission: Admission) -> None:
        """Wait for a compilation, at most `refuse_within` seconds, and ignore its result."""
        assert admission.compilation is not None
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def tell(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed, and nothing waits
                loop.call_soon_threadsafe(done.set)

        admission.compilation.add_done_callback(tell)
        with suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), self._config.refuse_within)

    def _submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.wrap_future(self._runtime.admission_threads.submit(work))

    def _admit(self, request: Any, text: str | None, records: list[Any] | None = None) -> Trial[None]:
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        params = request.sampling_params
        self._check_host(request, params)
        prompt = tuple(request.prompt_token_ids or (0,))  # prompts of embeddings have no token ids
        # ids from outside may not be unique yet
        request_id = f"{request.request_id}/{next(self._numbers)}"
        ours = request_of(request_id, prompt, params, request.priority)
        self._runtime.check(
            Submission(
                request_id=request_id,
                prompt=text,
                params=ours.params,
                prompt_token_ids=prompt,
                tenant=ours.tenant,
            )
        )
        if self._config.isolate_tenants:
            request.cache_salt = repr((ours.tenant, request.cache_salt))
        bans = None if ours.params.constraint is None else bans_of(params)
        acting, constraint, verdict = yield from self._try(ours, bans, short_budget_of(params))
        late = [name for name in acting if self._modifiers[name].stage in (Stage.POST_WARP, Stage.SAMPLE)]
        if (acting or ours.params.records) and request.prompt_embeds is not None:
            what, field = (f"modifier {acting[0]!r} needs", "modifiers") if acting else (f"{RECORDS} need", RECORDS)
            raise UnsupportedCapability(f"{what} the tokens of the prompt, which came as embeddings", field=field)
        if late:
            self._check_draw(f"modifier {late[0]!r} acts on the final distribution", "modifiers", params)
        elif ours.params.records:
            self._check_draw(f"{RECORDS} is of the final distribution", RECORDS, params)
        if (acting or ours.params.records) and params.structured_outputs is None:
            params.structured_outputs = StructuredOutputsParams(json_object=True)
            params.structured_outputs._backend = f"{CARRIER}{self._fingerprint}"
        elif params.structured_outputs is not None:
            # as plain text, which crosses processes and need not be written again
            params.structured_outputs = outputs = copy.copy(params.structured_outputs)
            if isinstance(constraint, JsonSchema) and not isinstance(outputs.json, str):
                outputs.json = str(constraint.source())
            outputs._backend = f"{PREFIX}{self._fingerprint} {verdict}"
        handed_on = (params.extra_args or {}).get("kv_transfer_params")
        if isinstance(handed_on, dict) and ATTRIBUTE in handed_on:
            # a proxy passed on the report of another request, which no connector understands
            rest = {name: value for name, value in handed_on.items() if name != ATTRIBUTE}
            params.extra_args = {**params.extra_args, "kv_transfer_params": rest}
        # parts of a resumable request have ids that no client asks for
        if self.observers is not None and not request.resumable:
            in_pieces = params.output_kind == RequestOutputKind.DELTA
            self.observers.record_admission(request.request_id, ours, in_pieces=in_pieces, records=records)

    def report_start(self, request_id: str, records: Sequence[Any] = ()) -> None:
        """Tell observers that a request has entered the engine. `records` comes from its trial, if that ran outside the
        event loop."""
        if self.observers is not None:
            self.observers.report_start(request_id, records)

    def judge(self, params: Any) -> Judge | None:
        """Return the checks of the outputs' texts for a request with these parameters; None if there are none."""
        if not hasattr(params, "structured_outputs"):
            return None
        constraint = constraint_to_check(params, self._config.on_unenforced)
        check = None if constraint is None else partial(self._check, constraint)
        completes = None if not params.stop or carries_only(params) else partial(self._ask, params)
        return Judge(params, check=check, completes=completes) if check or completes else None

    def _check(self, constraint: JsonSchema | JsonObject, text: str, enforces_formats: bool) -> Future[bool | None]:
        return self._runtime.checker.judge(constraint, text, enforces_formats=enforces_formats)

    def _ask(self, params: Any, text: str) -> Future[bool]:
        """Run `_completes` in an admission thread."""
        try:
            return self._runtime.admission_threads.submit(partial(self._completes, params, text))
        except GuidewayError:  # no thread is left
            unknown: Future[bool] = Future()
            unknown.set_result(False)
            return unknown

    def _completes(self, params: Any, text: str) -> bool:
        """Return whether `text`, which ends before a stop string, satisfies the constraint. False also if that is
        unknown: with a reasoning parser, which alone knows where the constraint begins, or if the constraint is no
        longer compiled."""
        if self._unchecked:
            return False
        try:
            return self._runtime.satisfies(request_of(f"stopped/{next(self._numbers)}", (0,), params), text)
        except GuidewayError as error:
            log.warning("guideway: whether a text that a stop string ended is complete is not known: %s", error)
            return False

    def _check_host(self, request: Any, params: Any) -> None:
        """Refuse features of vLLM that work with neither constraints nor modifiers."""
        if not is_ours(params):
            return
        if self._unchecked and (params.extra_args or {}).get(ON_UNENFORCED_KEY) == "check":
            raise UnsupportedCapability(f"{self._unchecked}; leave out the check", field=ON_UNENFORCED_KEY)
        if self._diffusion:
            raise UnsupportedCapability("a diffusion model writes in no order a constraint or modifier could follow")
        if request.resumable:
            raise UnsupportedCapability(
                "streamed input goes with neither a constraint nor a modifier", field="resumable"
            )
        if getattr(params, "trace_decode_token_ids", None):
            raise UnsupportedCapability(
                "replaying a trace goes with neither a constraint nor a modifier", field="trace_decode_token_ids"
            )

    def _try(
        self, request: Request, bans: Bans | None = None, short_budget: ShortBudget | None = None
    ) -> Trial[tuple[list[str], Constraint | None, str]]:
        """Yield the request's admission, and return the modifiers that act on it, its constraint as admitted, and the
        runtime's verdict. It may still be compiling then."""
        admission = self._runtime.admit(request, bans, short_budget=short_budget)
        constraint = admission.request.params.constraint
        try:
            verdict = self._runtime.verdict(admission)
            yield admission
            if not admission.ready():
                with self._slot:
                    return list(self._runtime.may_act(admission)), constraint, verdict
            if self._config.modifiers:
                return self._start(admission), constraint, verdict
            if admission.compilation is not None:
                admission.compilation.result()
            return [], constraint, verdict
        finally:
            self._abandon(admission)

    def _start(self, admission: Admission) -> list[str]:
        with self._slot:
            self._runtime.start(admission, 0)
            try:
                return list(self._runtime.acting(0))
            finally:
                self._runtime.release(0, ended=False)

    def _abandon(self, admission: Admission) -> None:
        for _ in range(admission.request.params.num_sequences):
            self._runtime.abandon(admission)

    def _check_draw(self, reason: str, field: str, params: Any) -> None:
        """Refuse what works only with vLLM's draw, since guideway draws, for a `reason` in a `field`."""
        for in_vain, loaded in (("logits processors", self._processors), ("watermark", self._watermark)):
            if loaded:
                raise UnsupportedCapability(
                    f"{reason}, so guideway draws the tokens of this request, and the {in_vain} of this server would "
                    "act in vain; start it without",
                    field=field,
                )
        given = [name for name in NOT_BESIDE_DRAWS if getattr(params, name, None)]
        if getattr(params, "logprobs", None) == 0:
            given.append("logprobs")
        if given:
            raise UnsupportedCapability(
                f"{reason}, so guideway draws the tokens of this request; {', '.join(given)} only go with vLLM's own "
                "draw: leave out one or the other",
                field=given[0],
            )

    def check_health(self) -> None:
        """Raise `Unhealthy` if valid requests would be refused."""
        self._runtime.check_health()

    def close(self) -> None:
        """Stop admitting and compiling, and close strategies and modifiers. Idempotent."""
        self._runtime.close()
        if self._handover is not None:
            self._handover.close()
        if self.observers is not None:
            self.observers.close()


def _go_on(trial: Trial[Any]) -> Admission | None:
    """Continue a trial in this thread until it waits for a compilation, and return that admission; None at the end."""
    return next((admission for admission in trial if not admission.ready()), None)


def _why_unchecked(vllm_config: Any) -> str:
    """Return the reason why outputs cannot be checked in this server; empty if they can."""
    if getattr(vllm_config.structured_outputs_config, "reasoning_parser", ""):
        return "a text is not checked with a reasoning parser, which alone knows where the reasoning ends in it"
    return ""


@contextmanager
def _raise_vllm_errors(*, over_network: str = "") -> Iterator[None]:
    """Raise errors of a request as errors that vLLM's server can answer with. If `over_network` is the request's id,
    the client does not get the text of a plugin's exception, which is only logged."""
    from vllm.exceptions import VLLMValidationError

    try:
        yield
    except InvalidRequest as error:
        said, failure = str(error), error.__cause__
        if over_network and isinstance(failure, PluginError):
            said = f"validator {_public_message(failure, over_network)}, so the request is refused"
        # vLLM logs an error with its causes
        raise VLLMValidationError(printable(said), parameter=error.field) from (None if over_network else error)
    except PluginError as error:
        said = f"{_public_message(error, over_network)}; the server's log says why" if over_network else str(error)
        raise _failure_class()(said, error.plugin) from (None if over_network else error)


def _public_message(error: PluginError, request_id: str) -> str:
    """Return that a plugin failed, and when, and log the rest."""
    trace = printable("".join(traceback.format_exception(error)).rstrip())  # escaped, unlike a logger's own traceback
    log.error("guideway: request %s: %s\n%s", passable(request_id), passable(str(error)), trace)
    when = f" {error.phase}" if error.phase else ""
    return passable(f"{error.plugin} failed{when} over request {request_id}")


@cache
def _failure_class() -> Callable[[str, str], PluginError]:
    """Return the class of a `PluginError` that vLLM's server answers with status 500 and its message."""
    from vllm.exceptions import GracefulHTTPError

    class Failed(PluginError, GracefulHTTPError):  # type: ignore[misc]
        def __init__(self, message: str, plugin: str) -> None:
            Exception.__init__(self, message)
            self.plugin, self.phase = plugin, ""
            self.message = message
            self.http_status = HTTPStatus.INTERNAL_SERVER_ERROR

    return Failed
