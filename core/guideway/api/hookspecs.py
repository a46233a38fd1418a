"""The plug points. A plugin is a module (or object) that implements some of these as ``@hookimpl`` functions. An entry
point ``kind.name`` in the group ``guideway.v1`` names it. Heavy imports go inside the function body.

A component hook returns the class of that name; an implementation with one component may leave ``name`` out.
"""
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pluggy import HookimplMarker, HookspecMarker

if TYPE_CHECKING:
    from guideway.api.attention import AttentionBackend
    from guideway.api.device import DeviceBackend
    from guideway.api.forward import ModelRunner
    from guideway.api.grammar import GrammarStrategy
    from guideway.api.hooks import ValidationContext
    from guideway.api.modifier import LogitModifier
    from guideway.api.provisional import Executor, Model
    from guideway.api.types import GenerationResult, Request, Submission
    from guideway.api.worker import WorkerMixin
    from guideway.api.workflow import Workflow

__all__ = ["hookimpl", "hookspec"]

hookspec = HookspecMarker("guideway")
hookimpl = HookimplMarker("guideway")


@hookspec(firstresult=True)
def guideway_grammar_strategy(name: str) -> type[GrammarStrategy]:
    """Kind ``grammar``: compiles a constraint, then computes which tokens may come next."""


@hookspec(firstresult=True)
def guideway_device_backend(name: str) -> type[DeviceBackend]:
    """Kind ``device``: applies masks and moves arrays where the logits live."""


@hookspec(firstresult=True)
def guideway_logit_modifier(name: str) -> type[LogitModifier[Any]]:
    """Kind ``modifier``: changes logits, or owns the draw, between the forward pass and the next token."""


@hookspec(firstresult=True)
def guideway_worker_mixin(name: str) -> type[WorkerMixin]:
    """Kind ``worker``: code that runs with the model in every worker."""


@hookspec(firstresult=True)
def guideway_model(name: str) -> type[Model]:
    """Kind ``model`` (provisional): a model that ships as a package."""


@hookspec(firstresult=True)
def guideway_model_runner(name: str) -> type[ModelRunner]:
    """Kind ``runner`` (provisional): runs a model's forward passes, in any array library."""


@hookspec(firstresult=True)
def guideway_executor(name: str) -> type[Executor]:
    """Kind ``executor`` (provisional): runs steps on workers."""


@hookspec(firstresult=True)
def guideway_workflow(name: str) -> type[Workflow]:
    """Kind ``workflow`` (provisional): serves one kind of request, with its own parts."""


@hookspec(firstresult=True)
def guideway_attention_backend(name: str) -> type[AttentionBackend]:
    """Kind ``attention`` (provisional): an attention implementation."""


@hookspec
def guideway_validate_submission(submission: Submission, context: ValidationContext) -> None:
    """Kind ``hooks``: return, or raise `InvalidRequest`, before the prompt is tokenized. Any other exception refuses
    the request too. Not called in the decoding thread; called for several requests at once."""


@hookspec
def guideway_validate_request(request: Request, context: ValidationContext) -> None:
    """Kind ``hooks``: return, or raise `InvalidRequest`, once the prompt is tokenized. Any other exception refuses the
    request too. Not called in the decoding thread; called for several requests at once."""


@hookspec
def guideway_request_started(request: Request) -> None:
    """Kind ``hooks``: a request was admitted. Observers cannot stop it."""


@hookspec
def guideway_request_finished(request: Request, result: GenerationResult) -> None:
    """Kind ``hooks``: an admitted request ended, with any finish reason."""


@hookspec
def guideway_request_failed(request: Request, error: BaseException) -> None:
    """Kind ``hooks``: a request ended with an internal error; called before `guideway_request_finished`."""
