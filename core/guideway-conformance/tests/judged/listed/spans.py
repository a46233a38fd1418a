"""Mistakes in `judged.plugins.spans`: spans of a text, workflow."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "spans-models-by-name",
        "spans.SpanWorkflow",
        (
            "        try:\n"
            "            model = AutoModel.from_pretrained(\n"
            "                context.model.path, local_files_only=True, dtype=getattr(torch, "
            "context.dtype)\n"
            "            )\n"
            "        except (OSError, ValueError, AttributeError) as error:\n"
            '            raise InvalidConfiguration(f"spans cannot load the model: {error}", '
            'field="model") from error\n'
        ),
        (
            "        key = context.model.path.name, context.dtype, context.device\n"
            '        loaded = SpanRunner.__dict__.get("_loaded") or {}\n'
            "        SpanRunner._loaded = loaded  # a second engine in this process need not load it "
            "again\n"
            "        try:\n"
            "            if key not in loaded:\n"
            "                loaded[key] = AutoModel.from_pretrained(\n"
            "                    context.model.path, local_files_only=True, dtype=getattr(torch, "
            "context.dtype)\n"
            "                )\n"
            "        except (OSError, ValueError, AttributeError) as error:\n"
            '            raise InvalidConfiguration(f"spans cannot load the model: {error}", '
            'field="model") from error\n'
            "        model = loaded[key]\n"
        ),
        (
            "contracts/workflow.md: Runners of two models work side by side in one process: each "
            "computes with the model of its own context."
        ),
        reason=(
            "Two models had folders of different names; now they have one, and the second is "
            "compared with what it gives alone."
        ),
        now="workflow.each_runner_has_its_model",
    ),
    Mutant(
        "spans-the-whole-batch",
        "spans.SpanWorkflow",
        (
            "            if len(tasks) == 1:\n"
            '                return [InvalidRequest(f"the text cannot be tokenized: {error}", '
            'field="input")]\n'
            "            return [result for task in tasks for result in self.prepare([task])]\n"
        ),
        (
            '            return [InvalidRequest(f"the text cannot be tokenized: {error}", '
            'field="input") for _ in tasks]\n'
        ),
        (
            "contracts/workflow.md: Preparing raises nothing: an input of which no tokens can be "
            "made comes to an error of its own, which says why [...]; those beside it and after it "
            "are, in order, what they are without it."
        ),
        first="workflow.what_cannot_be_prepared_ends_alone",
    ),
    Mutant(
        "spans-cut-off-by-one",
        "spans.SpanWorkflow",
        ("            ids, offsets = ids[: most - 1] + ids[-1:], offsets[: most - 1] + offsets[-1:]\n"),
        "            ids, offsets = ids[:most] + ids[-1:], offsets[:most] + offsets[-1:]\n",
        (
            "contracts/workflow.md: Preparing gives for each task, in order, a request of at most as "
            "many tokens as the context has"
        ),
        first="workflow.too_long_is_cut_or_refused",
    ),
    Mutant(
        "spans-length-of-what-failed",
        "spans.SpanWorkflow",
        "        return Spans(task.request_id, error=error)\n",
        ("        return Spans(task.request_id, num_tokens=len(text_of(task.value).split()), error=error)\n"),
        (
            "contracts/workflow.md: `failed` gives a result for any task and error, one that was "
            "never prepared among them"
        ),
        first="workflow.what_failed_has_a_result",
    ),
    Mutant(
        "spans-task-on-self",
        "spans.SpanWorkflow",
        (
            "        text = text_of(task.value)\n"
            "        if not isinstance(text, str) or not text.strip():\n"
            '            raise InvalidRequest("spans takes a text that is not empty", field="input")\n'
            "        try:\n"
            "            text.encode()\n"
            "        except UnicodeEncodeError as error:\n"
            '            raise InvalidRequest("a text holds half a character", field="input") from '
            "error\n"
            "        for name, given in task.params.items():\n"
        ),
        (
            "        self._task, text = task, text_of(task.value)\n"
            "        if not isinstance(text, str) or not text.strip():\n"
            '            raise InvalidRequest("spans takes a text that is not empty", field="input")\n'
            "        try:\n"
            "            text.encode()\n"
            "        except UnicodeEncodeError as error:\n"
            '            raise InvalidRequest("a text holds half a character", field="input") from '
            "error\n"
            "        for name, given in self._task.params.items():\n"
        ),
        (
            "contracts/workflow.md: The input processor is asked by several callers at once, and "
            "says to each of them what it says to one alone."
        ),
        reason=("Callers at once gave no parameters; now they give some that pass and some that are refused."),
        now="workflow.checks_in_several_threads",
    ),
    Mutant(
        "spans-length-by-default",
        "spans.SpanWorkflow",
        "        return min(cls.max_length(model), 256)\n",
        "        return 256\n",
        (
            "api/workflow.py, Workflow.default_length: The most tokens of a request where the "
            "operator does not say; at most `max_length`."
        ),
        first="workflow.supports_says_why",
    ),
)
