"""Mistakes in `judged.plugins.similarity`: a workflow for pairs."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "similarity-mean-of-the-padding",
        "similarity.Similarity",
        "            means = (hidden * weights).sum(1) / weights.sum(1)\n",
        "            means = hidden.mean(1)\n",
        ("docs/contracts/workflow.md: A request's result is the same alone, among others, and in another order."),
        first="workflow.company_changes_nothing",
    ),
    Mutant(
        "similarity-first-text-was-cut",
        "similarity.Similarity",
        "            truncated=any(too_long),\n",
        "            truncated=too_long[0],\n",
        (
            "docs/contracts/workflow.md: A request of more tokens than the context has is cut, which "
            "`truncated` says, or refused with `LimitExceeded`"
        ),
        reason=(
            "The default refuses what is too long; now the policy to cut is asked for, and contexts "
            "that fit exactly are tried."
        ),
        now="workflow.too_long_is_cut_or_refused",
    ),
    Mutant(
        "similarity-one-fails-all",
        "similarity.Similarity",
        ('                found.append(InvalidRequest(f"a text cannot be tokenized: {error}", field="input"))\n'),
        (
            '                return [InvalidRequest(f"a text cannot be tokenized: {error}", '
            'field="input") for _ in tasks]\n'
        ),
        "guideway.api docstring: RequestProcessor.prepare: A task's error touches no other task",
        first="workflow.what_cannot_be_prepared_ends_alone",
    ),
    Mutant(
        "similarity-pair-kept-in-the-part",
        "similarity.Similarity",
        ("        for text in pair:\n            try:\n"),
        (
            "        self._pair = pair\n"
            "        for index in (0, 1):\n"
            "            text = self._pair[index]\n"
            "            try:\n"
        ),
        "docs/writing/workflow.md: `check` runs in the callers' threads, several at once",
        reason="The check ran in one thread; now it runs in several, in which it has to say what it says alone.",
        now="workflow.checks_in_several_threads",
    ),
    Mutant(
        "similarity-one-special-token",
        "similarity.Similarity",
        "        room = self._half - 2\n",
        "        room = self._half - 1\n",
        (
            "docs/contracts/workflow.md: Preparing gives for each task, in order, a request of at "
            "most as many tokens as the context has"
        ),
        reason=(
            "The default refuses what is too long; now the policy to cut is asked for, and contexts "
            "that fit exactly are tried."
        ),
        now="workflow.too_long_is_cut_or_refused",
    ),
    Mutant(
        "similarity-not-finite-is-left-out",
        "similarity.Similarity",
        (
            '                found.append(GuidewayError("the model gave a vector that is not finite"))\n'
            "                continue\n"
        ),
        "                continue\n",
        ("guideway.api docstring: OutputProcessor.results: The result of each request, in order, or why it has none."),
        reason="Every number was finite; now some are not.",
        now="workflow.what_is_not_finite_ends_alone",
    ),
    Mutant(
        "similarity-unknown-parameters-pass",
        "similarity.Similarity",
        '                raise InvalidRequest(f"similarity has no parameter {name!r}", field="params")\n',
        "                continue\n",
        "docs/writing/workflow.md: **Nothing is ignored.** ... refuse what you do not know.",
        reason="Any end of the check was right for an unknown parameter; now it has to refuse it.",
        now="workflow.what_it_does_not_know_is_refused",
    ),
    Mutant(
        "similarity-values-in-a-set",
        "similarity.Similarity",
        'PARAMETERS = {"metric": ("cosine", "dot"), "truncate": ("refuse", "right")}\n',
        'PARAMETERS = {"metric": {"cosine", "dot"}, "truncate": {"refuse", "right"}}\n',
        (
            "docs/contracts/workflow.md: The input processor passes or raises `InvalidRequest`, "
            "whatever the input and its parameters are."
        ),
        reason="No parameter was used; now those that the parts ask for are, with odd values.",
        now="workflow.any_value_is_served_or_refused",
    ),
    Mutant(
        "similarity-failed-counts-words",
        "similarity.Similarity",
        "        return Score(task.request_id, error=error)\n",
        ("        return Score(task.request_id, sum(len(text.split()) for text in task.value), error=error)\n"),
        (
            "docs/contracts/workflow.md: `failed` gives a result for any task and error, one that "
            "was never prepared among them"
        ),
        first="workflow.what_failed_has_a_result",
    ),
    Mutant(
        "similarity-one-model-for-all",
        "similarity.Similarity",
        "        self._model = model.to(self.context.device).eval()\n",
        "        type(self)._model = model.to(self.context.device).eval()\n",
        (
            "docs/contracts/workflow.md: A runner can be closed, loaded or not, and another one then "
            "still works. (and guideway.api docstring, WorkflowRunner.close: Let go of what it holds.)"
        ),
        reason="There was one model; now there are two.",
        now="workflow.each_runner_has_its_model",
    ),
    Mutant(
        "similarity-short-ones-first",
        "similarity.Similarity",
        "texts = [request.token_ids[request.token_types == which] for which in (0, 1) for request in work]",
        (
            "texts = [request.token_ids[request.token_types == which] for which in (0, 1) for "
            "request in sorted(work, key=lambda request: request.num_tokens)]"
        ),
        (
            "guideway.api docstring: OutputProcessor.results: The result of each request, in order "
            "(and docs/contracts/workflow.md: A request's result is the same alone, among others, "
            "and in another order.)"
        ),
        first="workflow.company_changes_nothing",
    ),
    Mutant(
        "similarity-weights-as-they-lie",
        "similarity.Similarity",
        "AutoModel.from_pretrained(where, local_files_only=True, dtype=getattr(torch, self.context.dtype))",
        "AutoModel.from_pretrained(where, local_files_only=True)",
        "docs/writing/workflow.md: Load the model with the `dtype` and on the `device` of the context.",
        reason="Every context said float32; now some say bfloat16 and float16.",
        now="workflow.weights_are_as_the_context_says",
    ),
    Mutant(
        "similarity-every-model-has-a-type",
        "similarity.Similarity",
        '        kind = model.config.get("model_type")\n',
        '        kind = model.config["model_type"]\n',
        "docs/contracts/workflow.md: `supports` returns None or a reason for any model",
        first="workflow.supports_says_why",
    ),
    Mutant(
        "similarity-ids-of-32-bits",
        "similarity.Similarity",
        "            token_ids=np.array(ids, dtype=np.int64),\n",
        "            token_ids=np.array(ids, dtype=np.int32),\n",
        "docs/contracts/workflow.md: The tokens of a request are int64 in one dimension",
        first="workflow.tokens_are_their_own",
    ),
    Mutant(
        "similarity-padding-written-into-the-step",
        "similarity.Similarity",
        (
            "            ids = torch.tensor(step.token_ids, device=self.context.device)\n"
            "            mask = torch.tensor(step.mask, device=self.context.device)\n"
        ),
        (
            "            ids = torch.from_numpy(step.token_ids).to(self.context.device)\n"
            "            mask = torch.tensor(step.mask, device=self.context.device)\n"
            "            ids[mask == 0] = ids[0, 0]\n"
        ),
        "docs/contracts/workflow.md: Executing a step changes neither the step nor what the next one gives.",
        first="workflow.steps_stay_as_they_are",
    ),
    Mutant(
        "similarity-nothing-is-a-text",
        "similarity.Similarity",
        ('        if not all(sides):\n            raise InvalidRequest("a text has no tokens", field="input")\n'),
        "",
        (
            "docs/contracts/workflow.md: an input of which no tokens can be made comes to an error "
            "of its own, which says why, and is not answered as an empty one"
        ),
        reason=(
            "A text of which a tokenizer makes special tokens alone is answered by the engine's own preparing, too."
        ),
        survives=True,
    ),
)
