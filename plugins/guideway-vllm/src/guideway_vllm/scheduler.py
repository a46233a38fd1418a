"""Subclasses of vLLM's scheduler and structured-output manager that call the guest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import wait
from functools import cache, partial
from typing import Any

import numpy as np

from guideway_vllm.config import GuestConfig
from guideway_vllm.core import Core, Pending
from guideway_vllm.reasoning import may_reason
from guideway_vllm.steps import ATTRIBUTE, RECORDS

__all__ = ["with_guest"]

RESTS = 0.002
"""Seconds between two checks whether masks are ready, when all requests wait for theirs."""

NO_MASKS = np.empty((0, 0), dtype=np.int32)
"""Placeholder for vLLM's masks in the message of a step; guideway's worker uses its own."""


@cache
def with_guest(scheduler: type[Any]) -> type[Any]:
    """Return a subclass of any `scheduler` class, with the guest in it."""
    return type(scheduler.__name__, (GuestScheduler, scheduler), {"__module__": __name__})


class GuestScheduler:
    """Mixin in front of the scheduler's class. Without guideway in its configuration it changes nothing."""

    guest: Core | None
    requests: dict[str, Any]
    running: list[Any]
    max_num_active_reqs: int
    num_spec_tokens: int
    _preempt_request: Callable[..., None]
    _final_reports: dict[str, dict[str, Any]]
    """Reports of the requests that ended in this step, to attach to their last outputs."""
    _prompt_logprobs: dict[str, Any]
    """Log-probabilities of the prompts of requests whose first token was drawn without a mask. vLLM returns them once;
    they are attached to the first final token."""

    def __init__(self, vllm_config: Any, *args: Any, structured_output_manager: Any, **kwargs: Any) -> None:
        config = GuestConfig.of(vllm_config)
        gated = not structured_output_manager.enable_in_reasoning
        parser = structured_output_manager.reasoner_cls if gated else None
        self.guest = None if config is None else Core(config, vllm_config, parser)
        self._final_reports = {}
        self._prompt_logprobs = {}
        # with data parallelism other ranks may wait for its steps
        self._may_rest = vllm_config.parallel_config.data_parallel_size == 1
        if self.guest is not None:
            manager = type(structured_output_manager)
            structured_output_manager.__class__ = type(manager.__name__, (GuestManager, manager), {})
            structured_output_manager.guest = self.guest
        try:
            super().__init__(  # type: ignore[call-arg]
                vllm_config, *args, structured_output_manager=structured_output_manager, **kwargs
            )
        except BaseException:
            if self.guest is not None:
                self.guest.close()
            raise
        if self.guest is not None:
            self.guest.runtime.start_hosts()  # all workers have started, so this process forks no more children

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Call vLLM's method, then start filling masks during the forward pass. If all requests wait for masks, sleep a
        moment: in a single process vLLM would call again at once and take processor time from the hosts."""
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        if self.guest is not None and not output.pending_structured_output_tokens:
            self.guest.foresee(self._sampled(output.num_scheduled_tokens), output.scheduled_spec_decode_tokens)
        idle = not self.running and not output.total_num_scheduled_tokens
        if idle and self._may_rest and self.guest is not None and self.guest.only_waits():
            time.sleep(RESTS)
        return output

    def get_grammar_bitmask(self, scheduler_output: Any) -> Any:
        """Return vLLM's masks with guideway's payload as an attribute."""
        output = super().get_grammar_bitmask(scheduler_output)  # type: ignore[misc]
        if self.guest is not None and output is not None:
            step, pending = self.structured_output_manager.take_step()  # type: ignore[attr-defined]
            setattr(output, ATTRIBUTE, step)
            setattr(scheduler_output, ATTRIBUTE, pending)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Call vLLM's method, which accepts the tokens, then end the requests that modifiers finished or that
        failed."""
        guest = self.guest
        if guest is None:
            return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        guest_output = getattr(model_runner_output, ATTRIBUTE, None)
        if (pending := getattr(scheduler_output, ATTRIBUTE, None)) is not None:
            guest.take_output(pending, guest_output)
        faults = {} if guest_output is None else guest_output.faults
        for request_id, fault in faults.items():
            guest.fail(request_id, fault)
        if pending is not None:
            self._sit_out(guest, pending, model_runner_output)
            sampled, places = model_runner_output.sampled_token_ids, model_runner_output.req_id_to_index
            if sampled:
                if pending.batch is not None:
                    guest.accept_step(pending, [sampled[places[r]] for r in pending.request_ids])
                elif guest.runtime.has_hosted_modifiers:
                    guest.announce({r: sampled[places[r]] for r in pending.request_ids if r in places})
        self._final_reports.clear()  # of aborted requests, whose outputs no client reads
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        guest.take_back()
        if guest.finished:
            self._end(list(guest.finished), "FINISHED_STOPPED", outputs)
        errors = {request_id: str(fault) for request_id, fault in faults.items()}
        if guest_output is not None and guest_output.failure is not None:
            errors = dict.fromkeys(scheduler_output.num_scheduled_tokens, guest_output.failure)
        if errors:
            self._fail(errors, outputs)
        self._attach_reports(guest, outputs)
        if guest.drafts_forced:
            guest.look_ahead(self._rooms(scheduler_output.num_scheduled_tokens))
        return outputs

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """Call vLLM's method, then replace drafts by forced tokens if these reach further."""
        super().update_draft_token_ids(draft_token_ids)  # type: ignore[misc]
        if self.guest is None or not self.guest.drafts_forced:
            return
        for request_id, run in self.guest.forced(self._rooms(draft_token_ids.req_ids)).items():
            request = self.requests[request_id]
            if len(run) > len(request.spec_token_ids):
                request.spec_token_ids = list(run)

    def _sampled(self, request_ids: Iterable[str]) -> Iterator[str]:
        """Return the constrained ones of these scheduled requests that are sampled in the step."""
        for request_id in request_ids:
            request = self.requests.get(request_id)
            if request is not None and request.use_structured_output and not request.is_prefill_chunk:
                yield request_id

    def _rooms(self, request_ids: Iterable[str]) -> dict[str, int]:
        """Return by request how many forced tokens it may have in the next step, for constrained ones that decode."""
        requests = [self.requests[request_id] for request_id in request_ids if request_id in self.requests]
        return {
            request.request_id: max(0, min(self.num_spec_tokens, request.max_tokens - request.num_output_tokens - 1))
            for request in requests
            if request.use_structured_output and not request.is_prefill_chunk and not request.is_finished()
        }

    def _handle_blocked_waiting_request(self, request: Any) -> bool:
        """Return whether a waiting request may be scheduled."""
        may_run = bool(super()._handle_blocked_waiting_request(request))  # type: ignore[misc]
        if not may_run or self.guest is None:
            return may_run
        if (may_run_again := self.guest.may_run(request.request_id)) is not None:
            return may_run_again
        # the places of requests that skip steps stay reserved
        num_sitting_out = len(self.guest.sitting_out)
        return not num_sitting_out or len(self.running) + num_sitting_out < self.max_num_active_reqs

    def _sit_out(self, guest: Core, pending: Pending, output: Any) -> None:
        """Preempt the requests whose masks were not ready, and drop their drawn tokens. vLLM finds their computed
        blocks, except the last one, in its prefix cache."""
        for request_id in reversed(pending.late):  # each is put before all that wait
            request = self.requests.get(request_id)
            if request is None or request.is_finished():
                continue
            if (logprobs := output.prompt_logprobs_dict.get(request_id)) is not None:
                self._prompt_logprobs[request_id] = logprobs
            guest.sit_out(request_id)
            if request.status.name == "RUNNING":
                self.running.remove(request)
                self._preempt_request(request, time.monotonic(), drop_stale_output=True)
            else:  # vLLM preempted it while the step was running
                request.drop_stale_output = True
        for request_id in [r for r in self._prompt_logprobs if r in pending.request_ids and r not in guest.sitting_out]:
            output.prompt_logprobs_dict[request_id] = self._prompt_logprobs.pop(request_id)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Release the request in the guest too; every ending request passes through here."""
        freed = super()._free_request(request, *args, **kwargs)  # type: ignore[misc]
        if self.guest is not None:
            self._prompt_logprobs.pop(request.request_id, None)
            orderly = str(request.get_finished_reason()) in ("stop", "length", "repetition")
            if (report := self.guest.release(request.request_id, orderly=orderly)) is not None:
                self._final_reports[request.request_id] = report
        return freed

    def _attach_reports(self, guest: Core, outputs: dict[int, Any]) -> None:
        """Attach the report of a request to its last output, and to outputs that may be the last, and the records of
        each output's tokens."""
        if not self._final_reports and not guest.may_end_unseen and not guest.recorded:
            return
        for of_client in outputs.values():
            for output in of_client.outputs:
                ended = output.finish_reason is not None
                report = (self._final_reports.get if ended else guest.report_so_far)(output.request_id)
                told = {ATTRIBUTE: report, RECORDS: guest.recorded.get(output.request_id)}
                if told := {name: value for name, value in told.items() if value is not None}:
                    output.kv_transfer_params = {**(output.kv_transfer_params or {}), **told}

    def _fail(self, errors: Mapping[str, str], outputs: dict[int, Any]) -> None:
        """End these requests with an error, including those that have just ended, since their outputs were not sent
        yet."""
        from vllm.v1.engine import FinishReason

        self._end(list(errors), "FINISHED_ERROR", outputs)
        for of_client in outputs.values():
            for output in of_client.outputs:
                if output.finish_reason is not None and output.request_id in errors:
                    output.finish_reason, output.stop_reason = FinishReason.ERROR, None
                    report = self._final_reports.setdefault(output.request_id, {})
                    report.setdefault("error", errors[output.request_id])
                    report.pop("reports", None)

    def _end(self, request_ids: list[str], status: str, outputs: dict[int, Any]) -> list[str]:
        """End requests, add that to the outputs of this step, and return those that had not ended."""
        from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
        from vllm.v1.request import RequestStatus

        ended = self.finish_requests(request_ids, RequestStatus[status])  # type: ignore[attr-defined]
        for request in ended:
            of_client = outputs.setdefault(request.client_index, EngineCoreOutputs(outputs=[]))
            output = next((o for o in of_client.outputs if o.request_id == request.request_id), None)
            if output is None:
                output = EngineCoreOutput(request_id=request.request_id, new_token_ids=[])
                of_client.outputs.append(output)
            output.finish_reason = request.get_finished_reason()
            output.stop_reason = request.stop_reason
        return [request.request_id for request in ended]


class GuestManager:
    """Mixin in front of the structured-output manager's class: guideway serves all constraints."""

    guest: Core
    _use_async_grammar_compilation: bool
    _step: tuple[Any, Any]

    def grammar_init(self, request: Any) -> None:
        """Start compiling in guideway's threads; vLLM waits for the future that this sets in the request."""
        if request.structured_output_request is None:
            return
        ready = self.guest.admit(request, partial(may_reason, self, request))
        if not self._use_async_grammar_compilation:  # several schedulers must find it ready in the same step
            wait([ready])
        request.structured_output_request.grammar = ready

    def grammar_bitmask(
        self,
        requests: dict[str, Any],
        structured_output_request_ids: list[str],
        scheduled_spec_decode_tokens: Mapping[str, list[int]],
    ) -> Any:
        """Return a placeholder; `take_step` returns the message for the workers."""
        if not structured_output_request_ids:
            return None
        self._step = self.guest.prepare(requests, structured_output_request_ids, scheduled_spec_decode_tokens)
        return NO_MASKS

    def take_step(self) -> tuple[Any, Any]:
        """Return the message for the workers, and the state to keep until its tokens arrive."""
        step = self._step
        del self._step
        return step

    def accept_tokens(self, request: Any, new_token_ids: list[int]) -> bool:
        """Accept final tokens. Returns False if the request must end with an error."""
        if not request.use_structured_output or not new_token_ids:
            return True
        return self.guest.accept(request.request_id, new_token_ids)

    def validate_tokens(self, request: Any, spec_tokens: list[int]) -> list[int]:
        """Return the drafts that every modifier accepts."""
        if not request.use_structured_output or not spec_tokens:
            return spec_tokens
        ids = [token_id for token_id in spec_tokens if token_id >= 0]
        return ids[: self.guest.validate(request.request_id, ids)]

    def clear_backend(self) -> None:
        """Close guideway's part, then call vLLM's method."""
        self.guest.close()
        super().clear_backend()  # type: ignore[misc]
