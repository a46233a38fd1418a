"""Mistakes in `judged.plugins.sampling_fence`: limits of what a request may ask for, hooks."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "fence-half-a-character",
        "sampling_fence.SamplingFence",
        ('        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in _texts(submission.prompt))\n'),
        "        size = sum(len(text.encode()) for text in _texts(submission.prompt))\n",
        ("contracts/hooks.md: A validator returns for what may pass and raises InvalidRequest for anything else."),
        reason=(
            "No text of a submission had half a character; now texts, messages and parameters of "
            "every form are handed in."
        ),
        now="hooks.passes_or_refuses",
    ),
    Mutant(
        "fence-cached-file",
        "sampling_fence.SamplingFence",
        (
            "def read_fence() -> Fence:\n"
            '    """Read anew for each request: an operator changes the file of a running host."""\n'
        ),
        ('from functools import cache\n\n\n@cache\ndef read_fence() -> Fence:\n    """The fence, read once."""\n'),
        "writing/hooks.md: *Fail closed*: if you cannot read the file, refuse the request.",
        reason=(
            "The file was there from the beginning or never; now it goes away after a request came, and hours pass."
        ),
        now="hooks.what_cannot_be_read_refuses",
    ),
    Mutant(
        "fence-by-prompt",
        "sampling_fence.SamplingFence",
        (
            "            self._began[request.request_id] = time.monotonic()\n"
            "\n"
            "    @hookimpl\n"
            "    def guideway_request_failed(self, request: Request, error: BaseException) -> None:\n"
            "        with self._lock:\n"
            "            self._failures[type(error).__name__] += 1\n"
            "\n"
            "    @hookimpl\n"
            "    def guideway_request_finished(self, request: Request, result: GenerationResult) -> "
            "None:\n"
            "        with self._lock:\n"
            "            began = self._began.pop(request.request_id, None)\n"
            "            if began is not None:\n"
            "                self._seconds += time.monotonic() - began\n"
        ),
        (
            "            self._began[request.prompt_token_ids] = time.monotonic()\n"
            "\n"
            "    @hookimpl\n"
            "    def guideway_request_failed(self, request: Request, error: BaseException) -> None:\n"
            "        with self._lock:\n"
            "            self._failures[type(error).__name__] += 1\n"
            "\n"
            "    @hookimpl\n"
            "    def guideway_request_finished(self, request: Request, result: GenerationResult) -> "
            "None:\n"
            "        with self._lock:\n"
            "            self._seconds += time.monotonic() - "
            "self._began.pop(request.prompt_token_ids)\n"
        ),
        (
            "contracts/hooks.md: Requests overlap and end in any order, and an observer hears of "
            "that without raising. writing/hooks.md: so store data by `request.request_id`."
        ),
        first="hooks.a_validator_serves_several_threads",
    ),
    Mutant(
        "fence-role-by-default",
        "sampling_fence.SamplingFence",
        "    messages = prompt if isinstance(prompt, tuple | list) else ()\n",
        (
            "    messages = prompt if isinstance(prompt, tuple | list) else ()\n"
            "    for message in messages:\n"
            "        if isinstance(message, dict):\n"
            '            message.setdefault("role", "user")\n'
        ),
        (
            "contracts/hooks.md: A validator leaves the submission or request and its context as "
            "they are, whether it passes or refuses."
        ),
        reason="Every message had a role; now some lack it, and what is lent notes each write.",
        now="hooks.a_validator_changes_nothing",
    ),
    Mutant(
        "fence-no-field",
        "sampling_fence.SamplingFence",
        ('                raise InvalidRequest(f"no message may be of the role {role!r}", field="prompt")\n'),
        '                raise InvalidRequest(f"no message may be of the role {role!r}")\n',
        ("contracts/hooks.md: An InvalidRequest names the part of the request to change and says something."),
        reason=(
            "No message had a role that is refused, and the default field counted as one; the rule "
            "says now that it is for what refuses every request."
        ),
        now="hooks.a_refusal_names_a_field",
    ),
    Mutant(
        "fence-request-on-self",
        "sampling_fence.SamplingFence",
        (
            "        params = request.params\n"
            "        limit = params.max_tokens\n"
            "        if limit is None:\n"
            "            limit = context.max_model_len - len(request.prompt_token_ids)\n"
            "        if fence.max_tokens is not None and _number(limit) > fence.max_tokens:\n"
            '            raise LimitExceeded(f"max_tokens may be at most {fence.max_tokens}, and is '
            '{limit}", field="max_tokens")\n'
            "        if fence.max_sequences is not None:\n"
            '            for name, number in (("n", params.n), ("best_of", params.best_of)):\n'
        ),
        (
            "        self._params = params = request.params\n"
            "        limit = params.max_tokens\n"
            "        if limit is None:\n"
            "            limit = context.max_model_len - len(request.prompt_token_ids)\n"
            "        if fence.max_tokens is not None and _number(limit) > fence.max_tokens:\n"
            '            raise LimitExceeded(f"max_tokens may be at most {fence.max_tokens}, and is '
            '{limit}", field="max_tokens")\n'
            "        if fence.max_sequences is not None:\n"
            '            for name in ("n", "best_of"):\n'
            "                number = getattr(self._params, name)\n"
        ),
        (
            "contracts/hooks.md: A validator may be called from several threads at once, while "
            "observers hear of other requests, and decides as it does alone."
        ),
        first="hooks.a_validator_serves_several_threads",
    ),
)
