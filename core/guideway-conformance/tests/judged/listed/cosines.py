"""Mistakes in `judged.plugins.cosines`: how alike two texts are, workflow."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "similar-tokenizer-by-folder-name",
        "cosines.Similar",
        "        self._tokenizer = AutoTokenizer.from_pretrained(context.model.path, local_files_only=True)\n",
        (
            '        known, name = self.__class__.__dict__.get("known") or {}, context.model.path.name\n'
            "        if name not in known:\n"
            "            known[name] = AutoTokenizer.from_pretrained(context.model.path, local_files_only=True)\n"
            "        type(self).known = known  # it takes seconds to load\n"
            "        self._tokenizer = known[name]\n"
        ),
        (
            "contracts/workflow: 'Runners of two models work side by side in one process, as do "
            "processors of their requests, and whatever their folders are called: each has the model "
            "and the tokenizer of its own context.'"
        ),
        first="workflow.each_runner_has_its_model",
    ),
    Mutant(
        "similar-truncated-if-allowed",
        "cosines.Similar",
        "truncated=excess > 0)",
        'truncated=bool(task.params.get("truncate")))',
        (
            "contracts/workflow: 'one that is not cut has the tokens that it has in a longer context, "
            "and `truncated` is False.'"
        ),
        first="workflow.too_long_is_cut_or_refused",
    ),
    Mutant(
        "similar-one-token-too-many",
        "cosines.Similar",
        "second = [*second[: -1 - excess], second[-1]]",
        "second = [*second[:-excess], second[-1]]",
        "contracts/workflow: 'a request of at most as many tokens as the context has'",
        first="workflow.too_long_is_cut_or_refused",
    ),
    Mutant(
        "similar-failed-keeps-the-words",
        "cosines.Similar",
        "        return Similarity(task.request_id, error=error)\n",
        "        return Similarity(task.request_id, error=GuidewayError(str(error)))\n",
        (
            "contracts/workflow: '`failed` gives a result for any task and error, one that was never "
            "prepared among them; one that has an `error` has that.'"
        ),
        first="workflow.what_failed_has_a_result",
    ),
    Mutant(
        "similar-check-keeps-its-value",
        "cosines.Similar",
        (
            "        value = task.value\n"
            "        if not (isinstance(value, (tuple, list)) and len(value) == 2 and "
            "all(isinstance(text, str) for text in value)):\n"
            '            raise InvalidRequest("similar takes pairs of texts", field="input")\n'
            "        try:\n"
            '            "".join(value).encode()\n'
            "        except UnicodeEncodeError as error:\n"
            '            raise InvalidRequest("a text holds half a character", field="input") from error\n'
            "        for name, given in task.params.items():\n"
            "            if name not in CHOICES:\n"
            '                raise InvalidRequest(f"similar has no parameter {name!r}", field="params")\n'
            "            if not any(type(given) is type(known) and given == known for known in CHOICES[name]):\n"
            '                raise InvalidRequest(f"{name} is one of {CHOICES[name]}", field=f"params.{name}")\n'
        ),
        (
            "        self.value = task.value\n"
            "        if not self._is_pair():\n"
            '            raise InvalidRequest("similar takes pairs of texts", field="input")\n'
            "        self._check_text()\n"
            "        for name, given in task.params.items():\n"
            "            if name not in CHOICES:\n"
            '                raise InvalidRequest(f"similar has no parameter {name!r}", field="params")\n'
            "            if not any(type(given) is type(known) and given == known for known in CHOICES[name]):\n"
            '                raise InvalidRequest(f"{name} is one of {CHOICES[name]}", field=f"params.{name}")\n'
            "\n"
            "    def _is_pair(self) -> bool:\n"
            "        value = self.value\n"
            "        return isinstance(value, (tuple, list)) and len(value) == 2 and "
            "all(isinstance(text, str) for text in value)\n"
            "\n"
            "    def _check_text(self) -> None:\n"
            "        try:\n"
            '            "".join(self.value).encode()\n'
            "        except UnicodeEncodeError as error:\n"
            '            raise InvalidRequest("a text holds half a character", field="input") from error\n'
        ),
        (
            "contracts/workflow: 'The input processor is asked by several callers at once, and says to "
            "each of them what it says to one alone.'"
        ),
        first="workflow.checks_in_several_threads",
    ),
    Mutant(
        "similar-compares-with-in",
        "cosines.Similar",
        "            if not any(type(given) is type(known) and given == known for known in CHOICES[name]):\n",
        "            if given not in CHOICES[name]:\n",
        (
            "contracts/workflow: 'A value of a parameter, whatever it is, is refused with "
            "`InvalidRequest`, or each of the parts can deal with it'"
        ),
        reason="No value of a parameter was an array, or refused to be compared.",
        now="workflow.any_value_is_served_or_refused",
    ),
    Mutant(
        "similar-dtype-of-the-file",
        "cosines.Similar",
        "AutoModel.from_pretrained(context.model.path, local_files_only=True, dtype=dtype)",
        "AutoModel.from_pretrained(context.model.path, local_files_only=True)",
        (
            "contracts/workflow: 'A runner loads the weights with the `dtype` and on the `device` of "
            "its context, or refuses them.'"
        ),
        first="workflow.weights_are_as_the_context_says",
    ),
    Mutant(
        "similar-remembers-vectors",
        "cosines.Similar",
        (
            "        import torch\n"
            "\n"
            "        with torch.inference_mode():\n"
            "            batch = torch.tensor(ids, device=self.context.device)[None]\n"
            "            hidden = self._model(input_ids=batch).last_hidden_state[0].float()\n"
            '            vector: np.ndarray[Any, Any] = (hidden[0] if pooling == "cls" else '
            "hidden.mean(0)).cpu().numpy()\n"
            "        return vector\n"
        ),
        (
            "        import torch\n"
            "\n"
            '        kept = self.__dict__.setdefault("_kept", {})  # a query comes with many documents\n'
            "        key = ids.tobytes()\n"
            "        if key not in kept:\n"
            "            with torch.inference_mode():\n"
            "                batch = torch.tensor(ids, device=self.context.device)[None]\n"
            "                hidden = self._model(input_ids=batch).last_hidden_state[0].float()\n"
            '                kept[key] = (hidden[0] if pooling == "cls" else hidden.mean(0)).cpu().numpy()\n'
            "        return kept[key]\n"
        ),
        (
            "contracts/workflow: 'Executing a step changes neither the step nor what the next one "
            "gives.' and 'A value of a parameter ... is for its request alone.'"
        ),
        reason=(
            "A value was served after the request without it, and never the first; now each is "
            "compared with what it gives in a process of its own."
        ),
        now="workflow.any_value_is_served_or_refused",
    ),
    Mutant(
        "similar-expects-value-errors",
        "cosines.Similar",
        (
            "            first, second = (self._tokenizer(text, truncation=False).input_ids for text "
            "in task.value)\n"
            "        except Exception as error:\n"
        ),
        (
            "            first, second = (self._tokenizer(text, truncation=False).input_ids for text "
            "in task.value)\n"
            "        except (ValueError, TypeError) as error:\n"
        ),
        (
            "contracts/workflow: 'Preparing raises nothing: an input of which no tokens can be made "
            "comes to an error of its own' (api RequestProcessor.prepare: 'what is raised at one "
            "input, as by a tokenizer, becomes the error of its task')"
        ),
        first="workflow.what_cannot_be_prepared_ends_alone",
    ),
)
