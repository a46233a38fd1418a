"""The front end: each request is tried before it is let in, so that whatever is wrong with it comes back as status 400.

A trial goes as far as the first token: admission, compilation, matcher and the states of all modifiers.
"""

from __future__ import annotations

import copy
import itertools
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from http import HTTPStatus
from importlib.metadata import entry_points
from typing import Any

from guideway.api import InvalidRequest, PluginError, Request, Stage, UnsupportedCapability
from guideway.plugins import Plugins
from guideway.runtime import Admission

from guideway_vllm.config import GuestConfig
from guideway_vllm.parts import build_runtime
from guideway_vllm.requests import CARRIER, GREEDY_BELOW, PREFIX, is_ours, request_of

__all__ = ["FrontEnd"]

log = logging.getLogger("vllm.guideway")

NOT_BESIDE_DRAWS = ("logprobs", "logprob_token_ids", "bad_words", "allowed_token_ids", "thinking_token_budget")
"""Parameters only vLLM's own draw obeys, or reports of."""


class FrontEnd:
    """Admission for one ``InputProcessor``. Safe to call from several threads."""

    def __init__(self, config: GuestConfig, vllm_config: Any) -> None:
        import vllm

        plugins = Plugins(settings=config.plugins)
        self._config = config
        plan = config.plan(plugins)
        self._fingerprint = plan.fingerprint
        self._judges_all = bool(config.modifiers or plugins.hooks().validate_request)
        self._runtime = build_runtime(config, plugins, vllm_config, front_end=True)
        self._modifiers = {cls.name: cls for cls, _ in self._runtime.modifier_classes()}
        self._drafts_on_cpu = (
            vllm_config.speculative_config is not None and vllm_config.device_config.device_type == "cpu"
        )
        model = vllm_config.model_config
        self._diffusion = bool(getattr(model, "is_diffusion", False))
        self._processors = bool(model.logits_processors or entry_points(group="vllm.logits_processors"))
        self._runner = "V2" if getattr(vllm_config, "use_v2_model_runner", False) else "V1"
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        log.info("%s", plan.summary(f"vLLM {vllm.__version__}"))

    @classmethod
    def of(cls, vllm_config: Any) -> FrontEnd | None:
        """That of a server; None if it is not configured. Raises `InvalidConfiguration` and `PluginError`."""
        config = GuestConfig.of(vllm_config)
        return None if config is None else cls(config, vllm_config)

    @staticmethod
    def hidden(params: Any) -> Any:
        """`params` without what vLLM would judge by the rules of its own backends."""
        if getattr(params, "structured_outputs", None) is None:
            return params
        bare = copy.copy(params)
        bare.structured_outputs = None
        return bare

    def admit(self, request: Any) -> None:
        """Try an ``EngineCoreRequest``, and prepare its parameters, which are its own, for the engine core. Raises
        ``VLLMValidationError`` for a request that cannot be served, and `PluginError` if a plugin failed over it."""
        from vllm.exceptions import VLLMValidationError

        params = request.sampling_params
        if params is None or not (self._judges_all or is_ours(params)):
            return
        try:
            self._admit(request, params)
        except InvalidRequest as error:
            raise VLLMValidationError(str(error), parameter=error.field) from error
        except PluginError as error:
            raise _failed()(error) from error

    def _admit(self, request: Any, params: Any) -> None:
        from vllm.sampling_params import StructuredOutputsParams

        self._check_host(request, params)
        prompt = request.prompt_token_ids or (0,)  # embeddings have no ids
        # ids given from outside need not be unique yet
        request_id = f"{request.request_id}/{next(self._numbers)}"
        acting = self._tried(request_of(request_id, prompt, params, request.priority))
        late = [name for name in acting if self._modifiers[name].stage in (Stage.POST_WARP, Stage.SAMPLE)]
        if acting and self._runner != "V1":
            raise UnsupportedCapability(
                f"modifier {acting[0]!r} cannot act here: vLLM's {self._runner} model runner has no seam for it; start "
                "the server with VLLM_USE_V2_MODEL_RUNNER=0",
                field="modifiers",
            )
        if acting and request.prompt_embeds is not None:
            raise UnsupportedCapability(
                f"modifier {acting[0]!r} needs the tokens of the prompt, which came as embeddings", field="modifiers"
            )
        if late:
            self._check_draw(late[0], params)
        if acting and params.structured_outputs is None:
            params.structured_outputs = StructuredOutputsParams(json_object=True)
            params.structured_outputs._backend = f"{CARRIER}{self._fingerprint}"
        elif params.structured_outputs is not None:
            params.structured_outputs._backend = f"{PREFIX}{self._fingerprint}"

    def _check_host(self, request: Any, params: Any) -> None:
        """Refuse what goes with neither constraints nor modifiers here."""
        if not is_ours(params):
            return
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

    def _tried(self, request: Request) -> list[str]:
        """The modifiers that act on the request, whose constraint may still compile afterwards."""
        with self._lock:
            admission = self._runtime.admit(request)
        try:
            if admission.wait(self._config.refuse_within):
                return self._started(admission)
        finally:
            self._abandon(admission)
        # which of them act does not depend on what the constraint compiles to
        free = replace(request, params=replace(request.params, constraint=None))
        with self._lock:
            admission = self._runtime.admit(free)
        try:
            return self._started(admission)
        finally:
            self._abandon(admission)

    def _started(self, admission: Admission) -> list[str]:
        with self._lock:
            self._runtime.start(admission, 0)
            try:
                return list(self._runtime.acting(0))
            finally:
                self._runtime.release(0, ended=False)

    def _abandon(self, admission: Admission) -> None:
        with self._lock:
            for _ in range(admission.request.params.num_sequences):
                self._runtime.abandon(admission)

    def _check_draw(self, modifier: str, params: Any) -> None:
        """`modifier` acts so late that guideway draws the tokens of the request, and not vLLM."""
        if self._drafts_on_cpu and params.temperature >= GREEDY_BELOW:
            raise UnsupportedCapability(
                f"modifier {modifier!r} acts on the final distribution, which drafts do not go with on a CPU above "
                "temperature 0: vLLM verifies them there with temperatures it has not set; leave out the modifier, or "
                "start the server without speculative decoding",
                field="modifiers",
            )
        if self._processors:
            raise UnsupportedCapability(
                f"modifier {modifier!r} acts on the final distribution, so guideway draws the tokens of this request, "
                "and the logits processors this server loads would act in vain; start it without them",
                field="modifiers",
            )
        given = [name for name in NOT_BESIDE_DRAWS if getattr(params, name, None)]
        if getattr(params, "logprobs", None) == 0:
            given.append("logprobs")
        if given:
            raise UnsupportedCapability(
                f"modifier {modifier!r} acts on the final distribution, so guideway draws the tokens of this request; "
                f"{', '.join(given)} only go with vLLM's own draw: leave out one or the other",
                field=given[0],
            )

    def close(self) -> None:
        """Stop compiling and close strategies and modifiers. Closing twice is fine."""
        self._runtime.close()


@cache
def _failed() -> Callable[[PluginError], PluginError]:
    """A `PluginError` that vLLM's server answers with status 500 and its message; of others it would say nothing."""
    from vllm.exceptions import GracefulHTTPError

    class Failed(PluginError, GracefulHTTPError):  # type: ignore[misc]
        def __init__(self, error: PluginError) -> None:
            Exception.__init__(self, str(error))
            self.plugin = error.plugin
            self.message = str(error)
            self.http_status = HTTPStatus.INTERNAL_SERVER_ERROR

    return Failed
