"""Plugins of kind ``hooks`` with one bug each."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from guideway.api import (
    GenerationResult,
    InvalidRequest,
    JsonSchema,
    LimitExceeded,
    Request,
    Submission,
    ValidationContext,
    hookimpl,
)

from saboteurs import saboteur

__all__: list[str] = []


@saboteur("hooks.implements_a_hook")
class ForgetsTheMarker:
    """Has the function, but not the marker."""

    def guideway_validate_request(self, request: Request, context: ValidationContext) -> None:
        return


@saboteur("hooks.implements_guideways_hooks")
class Misspells:
    """Has one of guideway's hooks, and one that is none."""

    @hookimpl
    def guideway_request_started(self, request: Request) -> None:
        return

    @hookimpl
    def guideway_request_ended(self, request: Request) -> None:
        return


@saboteur("hooks.passes_or_refuses")
class RaisesWhatItMet:
    """Lets a library's exception out."""

    @hookimpl
    def guideway_validate_request(self, request: Request) -> None:
        ["small", "medium", "large"][len(request.prompt_token_ids)]


@saboteur("hooks.a_validator_returns_nothing")
class ReplacesTheRequest:
    """Believes that what it returns takes the request's place."""

    @hookimpl
    def guideway_validate_request(self, request: Request) -> Any:
        return request


@saboteur("hooks.a_refusal_names_a_field")
class RefusesWithoutAField:
    """Says no, and nothing more."""

    @hookimpl
    def guideway_validate_request(self, request: Request) -> None:
        raise InvalidRequest("", field="")


@saboteur("hooks.a_validator_changes_nothing")
class CorrectsTheRequest:
    """Fills in what it finds missing."""

    @hookimpl
    def guideway_validate_request(self, request: Request) -> None:
        request.params.modifiers["policy"] = {}  # type: ignore[index]


@saboteur("hooks.passes_or_refuses")
class ExpectsTokens:
    """Takes for granted that what came is tokenised."""

    @hookimpl
    def guideway_validate_submission(self, submission: Submission) -> None:
        if len(submission.prompt_token_ids or ()) / len(submission.prompt_token_ids or ()) > 100:
            raise InvalidRequest("it is too long", field="prompt")


@saboteur("hooks.passes_or_refuses")
class KnowsFourTasks:
    """Takes for granted that guideway's tasks are all there are."""

    @hookimpl
    def guideway_validate_request(self, request: Request) -> None:
        {"generate": 4, "embed": 1, "rerank": 2, "classify": 1}[request.task]


@saboteur("hooks.passes_or_refuses")
class ComparesPriorities:
    """Takes for granted that what a caller sent has been looked at."""

    @hookimpl
    def guideway_validate_submission(self, submission: Submission) -> None:
        if submission.params.priority < -10:
            raise InvalidRequest("that is too urgent", field="priority")


@saboteur("hooks.a_validator_changes_nothing")
class PrunesTheSchema:
    """Takes out of a schema what costs nothing, where everybody reads it."""

    @hookimpl
    def guideway_validate_request(self, request: Request) -> None:
        if isinstance(request.params.constraint, JsonSchema):
            request.params.constraint.parsed.pop("title", None)


@saboteur("hooks.a_validator_changes_nothing")
class CompletesTools:
    """Gives each tool the type that it leaves out."""

    @hookimpl
    def guideway_validate_submission(self, submission: Submission) -> None:
        for tool in submission.tools:
            tool.setdefault("type", "function")  # type: ignore[attr-defined]


@saboteur("hooks.what_cannot_be_read_refuses")
class FailsOpen:
    """Goes on without the file that it cannot read."""

    @hookimpl
    def guideway_validate_request(self, request: Request) -> None:
        try:
            tenants = Path(os.environ.get("GUIDEWAY_FAILSOPEN", os.devnull)).read_bytes().splitlines()
        except OSError:
            tenants = []
        if request.tenant.encode() in tenants:
            raise InvalidRequest("this tenant is not served", field="tenant")


@saboteur("hooks.what_cannot_be_read_refuses")
class ReadsAnythingAsText:
    """Takes for granted that a file is one of UTF-8."""

    @hookimpl
    def guideway_validate_request(self, request: Request) -> None:
        try:
            tenants = Path(os.environ.get("GUIDEWAY_READSANYTHING", os.devnull)).read_text("utf-8").splitlines()
        except OSError as error:
            raise InvalidRequest("nobody is served", field="tenant") from error
        if request.tenant in tenants:
            raise InvalidRequest("this tenant is not served", field="tenant")


@saboteur("hooks.a_validator_serves_several_threads")
class AddsUpInOnePlace:
    """Sums up in an attribute what a request asks for."""

    def __init__(self) -> None:
        self.asked = 0

    @hookimpl
    def guideway_validate_request(self, request: Request) -> None:
        self.asked = len(request.prompt_token_ids)
        self.asked += request.params.max_tokens or 0
        if self.asked > 500:
            raise InvalidRequest("that is too much", field="max_tokens")


@saboteur("hooks.a_validator_serves_several_threads")
class CountsWhatRuns:
    """Looks through what runs, while requests start and end."""

    def __init__(self) -> None:
        self.running: dict[str, Request] = {}

    @hookimpl
    def guideway_validate_request(self, request: Request) -> None:
        if sum(each.tenant == "nobody" for each in self.running.values()) > 5:
            raise InvalidRequest("that is too much", field="tenant")

    @hookimpl
    def guideway_request_started(self, request: Request) -> None:
        self.running[request.request_id] = request

    @hookimpl
    def guideway_request_finished(self, request: Request) -> None:
        del self.running[request.request_id]


@saboteur("hooks.a_validator_serves_several_threads")
class KnowsOneAtATime:
    """Keeps the request it looks at where the next one is kept too."""

    def __init__(self) -> None:
        self.current: Request | None = None

    @hookimpl
    def guideway_validate_request(self, request: Request) -> None:
        self.current = request
        time.sleep(0.001)  # it looks something up
        if self.current is not request:
            raise RuntimeError("the wrong request")


@saboteur("hooks.hears_of_every_start")
class ReadsTheText:
    """Takes for granted that a prompt was given as text."""

    @hookimpl
    def guideway_request_started(self, request: Request) -> None:
        assert request.prompt is not None
        print(request.prompt.split()[0])


@saboteur("hooks.hears_of_every_end")
class KnowsTwoReasons:
    """Takes for granted that a request ends in one of two ways."""

    @hookimpl
    def guideway_request_finished(self, request: Request, result: GenerationResult) -> None:
        {"stop": 0, "length": 1}[result.outputs[0].finish_reason]


@saboteur("hooks.hears_of_every_end")
class ExpectsNoError:
    """Takes for granted that what ends has no error."""

    @hookimpl
    def guideway_request_finished(self, result: GenerationResult) -> None:
        if result.error is not None:
            raise result.error


@saboteur("hooks.an_observer_has_heard")
class Coroutine:
    """Is a coroutine, which nobody awaits."""

    @hookimpl
    async def guideway_request_started(self, request: Request) -> None:
        return


@saboteur("hooks.hears_of_every_failure")
class ReadsTheCause:
    """Takes for granted that every error has a message."""

    @hookimpl
    def guideway_request_failed(self, request: Request, error: BaseException) -> None:
        str(error).split()[0]


@saboteur("hooks.hears_of_many_at_once")
class ExpectsOneAfterTheOther:
    """Takes for granted that a request ends before the next one starts."""

    def __init__(self) -> None:
        self.running: str | None = None

    @hookimpl
    def guideway_request_started(self, request: Request) -> None:
        if self.running is not None:
            raise RuntimeError(f"{self.running} is still running")
        self.running = request.request_id

    @hookimpl
    def guideway_request_finished(self, request: Request) -> None:
        self.running = None


@saboteur("hooks.passes_or_refuses")
class WeighsTexts:
    """Takes for granted that every text has bytes."""

    @hookimpl
    def guideway_validate_submission(self, submission: Submission) -> None:
        if isinstance(submission.prompt, str) and len(submission.prompt.encode()) > 1_000_000:
            raise InvalidRequest("that is long", field="prompt")


@saboteur("hooks.a_validator_changes_nothing")
class TakesItBack:
    """Takes a message's role out, and puts it back."""

    @hookimpl
    def guideway_validate_submission(self, submission: Submission) -> None:
        for message in submission.prompt if isinstance(submission.prompt, tuple) else ():
            if isinstance(message, dict) and "role" in message:
                message["role"] = message.pop("role")


@saboteur("hooks.a_refusal_names_a_field")
class NamesTheWhole:
    """Refuses a role, and says that the request is to be changed."""

    @hookimpl
    def guideway_validate_submission(self, submission: Submission) -> None:
        for message in submission.prompt if isinstance(submission.prompt, tuple) else ():
            if isinstance(message, dict) and message.get("role") not in ("user", "assistant", "system", "tool"):
                raise InvalidRequest("who says that?")


@saboteur("hooks.what_cannot_be_read_refuses")
class KeepsWhatItRead:
    """Reads its file when the first request comes, and never again."""

    content: bytes | None = None

    @hookimpl
    def guideway_validate_request(self, request: Request) -> None:
        try:
            if self.content is None:
                self.content = Path(os.environ.get("GUIDEWAY_KEEPSWHAT", os.devnull)).read_bytes()
        except OSError as error:
            raise InvalidRequest("nobody is served", field="tenant") from error


@saboteur("hooks.an_observer_has_heard")
class LeavesItToAThread:
    """Starts a thread for each end, which writes it down."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    @hookimpl
    def guideway_request_finished(self, request: Request) -> None:
        threading.Thread(target=self.ended.append, args=(request.request_id,), daemon=True).start()


@saboteur("hooks.an_observer_goes_on_without_its_files")
class ReadsItsSettingsAtTheEnd:
    """Looks where to write a line when a request ended, and takes it that it finds out."""

    @hookimpl
    def guideway_request_finished(self, request: Request) -> None:
        place = os.environ.get("GUIDEWAY_READSITSSETTINGS")
        if place:
            Path(place).read_text("utf-8")


@saboteur("hooks.hears_of_every_end")
class SignsReports:
    """Writes the request's name into the reports of modifiers."""

    @hookimpl
    def guideway_request_finished(self, request: Request, result: GenerationResult) -> None:
        for output in result.outputs:
            for report in output.reports.values():
                report["request_id"] = request.request_id  # type: ignore[index]


@saboteur("hooks.hears_of_many_at_once")
class ServesANameOnce:
    """Takes it that a name that was given is never given again."""

    def __init__(self) -> None:
        self.known: set[str] = set()

    @hookimpl
    def guideway_request_started(self, request: Request) -> None:
        if request.request_id in self.known:
            raise RuntimeError("it is known")

    @hookimpl
    def guideway_request_finished(self, request: Request) -> None:
        self.known.add(request.request_id)


@saboteur("hooks.a_validator_decides_each_by_itself")
class TakesOutWhatItLooksAt:
    """Takes the modifiers out of the limits that it keeps, so that only the first request meets them."""

    def __init__(self) -> None:
        self.limits: dict[str, Any] = {"modifiers": ("watermark",)}

    @hookimpl
    def guideway_validate_request(self, request: Request) -> None:
        names = self.limits.pop("modifiers", None)
        if names is not None and set(request.params.modifiers or ()) - set(names):
            raise InvalidRequest("it is for others", field="modifiers")


@saboteur("hooks.a_validator_decides_each_by_itself")
class RemembersNames:
    """Refuses what comes after a request that it refused, in words that do not speak of a limit."""

    def __init__(self) -> None:
        self.refused = False

    @hookimpl
    def guideway_validate_submission(self, submission: Submission) -> None:
        if self.refused or submission.params.n > 100:
            self.refused = True
            raise InvalidRequest("not again", field="n")


@saboteur("hooks.a_validator_serves_several_threads")
class AddsUpWhatRuns:
    """Goes through what runs while another thread adds to it."""

    def __init__(self) -> None:
        self.running: dict[str, str] = {}

    @hookimpl
    def guideway_validate_request(self, request: Request) -> None:
        if sum(tenant == request.tenant for tenant in self.running.values()) > 10_000:
            raise LimitExceeded("too many", field="tenant")

    @hookimpl
    def guideway_request_started(self, request: Request) -> None:
        self.running[request.request_id] = request.tenant

    @hookimpl
    def guideway_request_finished(self, request: Request) -> None:
        self.running.pop(request.request_id, None)


@saboteur("hooks.passes_or_refuses")
class LooksNoDeeper:
    """Takes it that nothing is nested deeper than ten levels."""

    @hookimpl
    def guideway_validate_submission(self, submission: Submission) -> None:
        level: Any = submission.tools
        for _ in range(10):
            level = [part for each in level if isinstance(each, dict) for part in each.values()]
        if level:
            raise ValueError("that is too deep")


@saboteur("hooks.a_validator_decides_each_by_itself")
class KnowsCleanBeginnings:
    """Looks at no text of which it has seen the first thousand characters pass."""

    def __init__(self) -> None:
        self.clean: set[str] = set()

    @hookimpl
    def guideway_validate_submission(self, submission: Submission) -> None:
        text = submission.prompt if isinstance(submission.prompt, str) else ""
        if text[:1000] in self.clean:
            return
        if "the secret word" in text:
            raise InvalidRequest("it has a word that is not served", field="prompt")
        self.clean.add(text[:1000])


@saboteur("hooks.a_validator_decides_each_by_itself")
class RefusesTheBusy:
    """Refuses a tenant of whom much runs, as if the request were wrong."""

    def __init__(self) -> None:
        self.running: dict[str, str] = {}

    @hookimpl
    def guideway_validate_request(self, request: Request) -> None:
        if list(self.running.values()).count(request.tenant) > 64:
            raise InvalidRequest("too many", field="tenant")

    @hookimpl
    def guideway_request_started(self, request: Request) -> None:
        self.running[request.request_id] = request.tenant

    @hookimpl
    def guideway_request_finished(self, request: Request) -> None:
        self.running.pop(request.request_id, None)


@saboteur("hooks.a_validator_decides_each_by_itself")
class SpendsABudget:
    """Refuses a tenant who has spent his tokens, as if the request were wrong."""

    def __init__(self) -> None:
        self.spent: dict[str, int] = {}

    @hookimpl
    def guideway_validate_request(self, request: Request) -> None:
        if self.spent.get(request.tenant, 0) > 10_000:
            raise InvalidRequest("the budget is spent", field="tenant")

    @hookimpl
    def guideway_request_finished(self, request: Request, result: GenerationResult) -> None:
        number = sum(len(output.token_ids) for output in result.outputs)
        self.spent[request.tenant] = self.spent.get(request.tenant, 0) + number


@saboteur("hooks.what_cannot_be_read_refuses")
class ReadsWhatHasChanged:
    """Opens its file anew only if that has another time or size."""

    stamp: tuple[int, int] | None = None

    @hookimpl
    def guideway_validate_request(self, request: Request) -> None:
        path = Path(os.environ.get("GUIDEWAY_READSWHATHASCHANGED", os.devnull))
        try:
            found = path.stat()
            if self.stamp != (found.st_mtime_ns, found.st_size):
                path.read_bytes()
                self.stamp = (found.st_mtime_ns, found.st_size)
        except OSError as error:
            raise InvalidRequest("nobody is served", field="tenant") from error


@saboteur("hooks.what_cannot_be_read_refuses")
class GoesByTheLastThatMadeSense:
    """Goes on by what it read last, where the file holds nonsense now."""

    tenants: list[str] | None = None

    @hookimpl
    def guideway_validate_request(self, request: Request) -> None:
        place = os.environ.get("GUIDEWAY_GOESBYTHELAST")
        if not place:
            return
        try:
            content = Path(place).read_bytes()
        except OSError as error:
            raise InvalidRequest("nobody is served", field="tenant") from error
        try:
            self.tenants = list(json.loads(content))
        except ValueError as error:
            if self.tenants is None:
                raise InvalidRequest("nobody is served", field="tenant") from error
        if request.tenant in (self.tenants or ()):
            raise InvalidRequest("this tenant is not served", field="tenant")
