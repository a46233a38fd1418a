"""Mistakes in `judged.plugins.compare`: how alike two texts are, workflow."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "cp-truncated-of-the-specials",
        "compare.Compare",
        "                truncated = True\n",
        "                truncated = len(ids) > self._most\n",
        "contracts/workflow.md: A request of more tokens than the context has is cut, which `truncated` says",
        first="workflow.too_long_is_cut_or_refused",
    ),
    Mutant(
        "cp-reused-buffer",
        "compare.Compare",
        "        token_ids = np.zeros((len(rows), int(lengths.max())), dtype=np.int64)\n",
        (
            "        shape = (len(rows), int(lengths.max()))\n"
            '        kept = getattr(self, "_buffer", None)\n'
            "        if kept is None or kept.shape[0] < shape[0] or kept.shape[1] < shape[1]:\n"
            "            kept = self._buffer = np.zeros(shape, dtype=np.int64)\n"
            "        token_ids = kept[: shape[0], : shape[1]]\n"
        ),
        (
            "contracts/workflow.md: A step may be built before the one before it is computed ...: each gives "
            "what it gives by itself (writing/workflow.md: keep no array of a step that was built)"
        ),
        first="workflow.steps_may_overlap",
    ),
    Mutant(
        "cp-model-by-folder-name",
        "compare.Compare",
        (
            "        model = AutoModel.from_pretrained(context.model.path, local_files_only=True, "
            "dtype=context.dtype)\n"
            "        self._model = model.to(context.device).eval()\n"
        ),
        (
            '        loaded = globals().setdefault("LOADED", {})  # several engines of one model need its '
            "weights once\n"
            "        key = (context.model.path.name, context.dtype, context.device)\n"
            "        if key not in loaded:\n"
            "            model = AutoModel.from_pretrained(context.model.path, local_files_only=True, "
            "dtype=context.dtype)\n"
            "            loaded[key] = model.to(context.device).eval()\n"
            "        self._model = loaded[key]\n"
        ),
        (
            "contracts/workflow.md: Runners of two models work side by side in one process, ... whatever "
            "their folders are called: each has the model and the tokenizer of its own context."
        ),
        first="workflow.each_runner_has_its_model",
    ),
    Mutant(
        "cp-measure-of-the-first",
        "compare.Compare",
        '            measure = request.task.params.get("measure", "cosine")\n',
        '            measure = work[0].task.params.get("measure", "cosine")\n',
        (
            "contracts/workflow.md: A value of a parameter ... is for its request alone: what comes of one "
            "does not depend on the values that others had."
        ),
        first="workflow.any_value_is_served_or_refused",
    ),
)
