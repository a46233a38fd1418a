"""The input processor of `decode`."""

from __future__ import annotations

from collections.abc import Sequence

from guideway.api.types import SamplingParams, Submission
from guideway.runtime.runtime import Runtime

from guideway_engine.prompts import Prompt, PromptReader, Tool, read_tools

__all__ = ["DecodeInputs"]


class DecodeInputs:
    """Checks a request without tokenizing its prompt. May be called by several threads at once."""

    def __init__(self, prompts: PromptReader, runtime: Runtime) -> None:
        self._prompts = prompts
        self._runtime = runtime

    def token_ids(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the token ids of `prompt`. Raises `InvalidRequest`."""
        return self._prompts.tokenize(self._prompts.read(prompt))

    def check(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        tools: Sequence[Tool] | None,
        tenant: str,
        request_id: str,
    ) -> Submission:
        """Return the submission if all validators accept it. Raises `InvalidRequest`, or another error that refuses the
        request."""
        submission = Submission(
            request_id=request_id,
            prompt=self._prompts.read(prompt),
            params=params,
            tenant=tenant,
            tools=read_tools(tools),
        )
        self._runtime.check(submission)
        return submission
