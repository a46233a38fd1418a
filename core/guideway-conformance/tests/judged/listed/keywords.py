"""Mistakes in `judged.plugins.keywords`: a workflow for keywords."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "keywords-top-k-stays",
        "keywords.Keywords",
        '        top_k = request.task.params.get("top_k", self.context.options.top_k)\n',
        (
            '        self._top_k = request.task.params.get("top_k", getattr(self, "_top_k", '
            "self.context.options.top_k))\n"
            "        top_k = self._top_k\n"
        ),
        ("docs/contracts/workflow.md: A request's result is the same alone, among others, and in another order."),
        reason="No parameter was used; now those that the parts ask for are, with odd values.",
        now="workflow.any_value_is_served_or_refused",
    ),
    Mutant(
        "keywords-beginning-is-the-key",
        "keywords.Keywords",
        "        key = text\n",
        "        key = text[:64]\n",
        (
            "docs/contracts/workflow.md: The tokens of a request are int64 in one dimension, and the "
            "same whatever is prepared beside it."
        ),
        reason="No two texts began alike; now some do, for up to 5,000 characters.",
        now="workflow.tokens_are_their_own",
    ),
    Mutant(
        "keywords-tokenizer-error-is-empty",
        "keywords.Keywords",
        (
            "        except Exception as error:\n"
            '            return InvalidRequest(f"the text cannot be tokenized: {error}", field="input")\n'
            "        most"
        ),
        (
            "        except Exception:\n"
            "            ids = [self._tokenizer.cls_token_id, self._tokenizer.sep_token_id]\n"
            "        most"
        ),
        (
            "docs/contracts/workflow.md: an input of which no tokens can be made comes to an error "
            "of its own, which says why, and is not answered as an empty one"
        ),
        reason="Special tokens alone were an answer where the empty text is refused; now they are none.",
        now="workflow.what_cannot_be_prepared_ends_alone",
    ),
    Mutant(
        "keywords-fits-exactly",
        "keywords.Keywords",
        "truncated=len(ids) > most)",
        "truncated=len(ids) >= most)",
        ("guideway.api docstring: Prepared.truncated: True if the input was longer, and cut as the caller allowed."),
        reason=(
            "The default refuses what is too long; now the policy to cut is asked for, and contexts "
            "that fit exactly are tried."
        ),
        now="workflow.too_long_is_cut_or_refused",
    ),
    Mutant(
        "keywords-lengths-once",
        "keywords.Keywords",
        "tuple(map(len, ids)))",
        "map(len, ids))",
        "docs/contracts/workflow.md: Executing a step changes neither the step nor what the next one gives.",
        first="workflow.steps_stay_as_they_are",
    ),
    Mutant(
        "keywords-centers-remember",
        "keywords.Keywords",
        "                center = hidden.mean(0, keepdim=True)\n",
        (
            "                center = hidden.mean(0, keepdim=True)\n"
            '                center = center + 0.1 * self.__dict__.get("_last", 0.0 * center)\n'
            "                self._last = center\n"
        ),
        "docs/contracts/workflow.md: Executing a step changes neither the step nor what the next one gives.",
        first="workflow.steps_stay_as_they_are",
    ),
    Mutant(
        "keywords-stays-on-the-cpu",
        "keywords.Keywords",
        "        self._model = model.to(self.context.device).eval()\n",
        "        self._model = model.eval()\n",
        "docs/writing/workflow.md: Load the model with the `dtype` and on the `device` of the context.",
        reason="Every context said cpu; now one says meta, which every torch has.",
        now="workflow.weights_are_as_the_context_says",
    ),
    Mutant(
        "keywords-id-behind-the-last",
        "keywords.Keywords",
        "0 <= token < size for token",
        "0 <= token <= size for token",
        (
            "docs/contracts/workflow.md: Every request that passes the check goes through all six "
            "parts and has a result that is no error."
        ),
        reason="The token id behind the last was not tried; now it is.",
        now="workflow.a_wrong_request_is_wrong_alone",
    ),
    Mutant(
        "keywords-error-retold",
        "keywords.Keywords",
        "        return KeywordList(task.request_id, error=error)\n",
        "        return KeywordList(task.request_id, error=GuidewayError(str(error)))\n",
        (
            "docs/contracts/workflow.md: `failed` gives a result for any task and error ...; one "
            "that has an `error` has that."
        ),
        first="workflow.what_failed_has_a_result",
    ),
    Mutant(
        "keywords-top-k-is-a-number",
        "keywords.Keywords",
        "        if type(top_k) is not int or top_k < 1:\n",
        "        if top_k < 1:\n",
        (
            "docs/contracts/workflow.md: The input processor passes or raises `InvalidRequest`, "
            "whatever the input and its parameters are."
        ),
        reason="No parameter was used; now those that the parts ask for are, with odd values.",
        now="workflow.any_value_is_served_or_refused",
    ),
    Mutant(
        "keywords-cut-where-it-lies",
        "keywords.Keywords",
        "        cut = [*ids[: most - 1], ids[-1]] if len(ids) > most else ids\n",
        ("        cut = ids\n        if len(ids) > most:\n            ids[most - 1 :] = ids[-1:]\n"),
        (
            "docs/writing/workflow.md: **Nothing is cut in silence.** ... or cut if the caller "
            "allows it: then `truncated` is True."
        ),
        first="workflow.too_long_is_cut_or_refused",
    ),
    Mutant(
        "keywords-closed-before-loaded",
        "keywords.Keywords",
        ("    def close(self) -> None:\n        self._model = None\n"),
        ("    def close(self) -> None:\n        del self._model\n"),
        ("docs/contracts/workflow.md: A runner can be closed, loaded or not, and another one then still works."),
        first="workflow.closes",
    ),
    Mutant(
        "keywords-sizes-are-there",
        "keywords.Keywords",
        ('        return None if all(isinstance(number, int) for number in known) else "its config lacks a size"\n'),
        "        return None\n",
        "docs/contracts/workflow.md: of one that it supports the lengths are known.",
        reason="The model of the suite said everything; now it also leaves out one entry at a time.",
        now="workflow.supports_says_why",
    ),
    Mutant(
        "keywords-short-ones-are-prepared-first",
        "keywords.Keywords",
        "        return [self._prepared(task) for task in tasks]\n",
        ("        return [self._prepared(task) for task in sorted(tasks, key=lambda task: len(task.value))]\n"),
        (
            "guideway.api docstring: RequestProcessor.prepare: One of each task, in order: the "
            "request, or why there is none."
        ),
        first="workflow.serves",
    ),
)
