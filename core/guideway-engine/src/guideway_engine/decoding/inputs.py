"""The input processor of `decode`: looks at what a caller gave."""

from __future__ import annotations

from collections.abc import Sequence

from guideway.api.types import SamplingParams, Submission
from guideway.runtime.runtime import Runtime

from guideway_engine.prompts import Prompt, PromptReader, Tool, read_tools

__all__ = ["DecodeInputs"]


class DecodeInputs:
    """Checks what a caller gave, without tokenizing it. May be called by several threads at once."""

    def __init__(self, prompts: PromptReader, runtime: Runtime) -> None:
        self._prompts = prompts
        self._runtime = runtime

    def check(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        tools: Sequence[Tool] | None,
        tenant: str,
        request_id: str,
    ) -> Submission:
        """The submission, which validators have passed. Raises `InvalidRequest`, or what else the request is refused
        with."""
        submission = Submission(
            request_id=request_id,
            prompt=self._prompts.read(prompt),
            params=params,
            tenant=tenant,
            tools=read_tools(tools),
        )
        self._runtime.check(submission)
        return submission
