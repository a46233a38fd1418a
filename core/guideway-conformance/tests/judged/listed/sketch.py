"""Mistakes in `judged.plugins.sketch`: binary sketches of texts, workflow."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "sk-order-of-preparing",
        "sketch.SketchWorkflow",
        "            heapq.heappush(self._ready, (*self._ticket(task), request))\n",
        (
            "            self._count += 1\n"
            "            heapq.heappush(self._ready, (task.priority, self._count, self._count, request))\n"
        ),
        (
            "contracts/workflow.md: none is computed before one that is prepared, in whatever order, came "
            "earlier and has a priority as low or lower."
        ),
        first="workflow.the_urgent_are_not_overtaken",
    ),
    Mutant(
        "sk-abort-leaves-it-out",
        "sketch.SketchWorkflow",
        ("        self._known.discard(task)\n        self._out.discard(task)\n        self._waiting ="),
        ("        self._known.discard(task)\n        self._waiting ="),
        (
            "contracts/workflow.md: A task that is aborted after it was handed out, as no request came of "
            "it, is in no step; the others are, however many failed."
        ),
        first="workflow.aborted_tasks_are_gone",
    ),
    Mutant(
        "sk-no-heapify-of-ready",
        "sketch.SketchWorkflow",
        "        heapq.heapify(self._ready)\n",
        "",
        (
            "contracts/workflow.md: A task that is aborted is in no later step, wherever it stood; the "
            "others are / Every task ... is in one step once"
        ),
        reason=(
            "Tasks were aborted before many were prepared; hosts with a backlog of prepared requests now "
            "abort at any time, many times over."
        ),
        now="workflow.aborted_tasks_are_gone",
    ),
    Mutant(
        "sk-one-nan-for-all",
        "sketch.SketchWorkflow",
        "            if not np.isfinite(vector).all():\n",
        "            if not np.isfinite(output).all():\n",
        (
            "contracts/workflow.md: `results` ... has a result or an error in the place of each request; "
            "where they are of one, the others have theirs."
        ),
        first="workflow.what_is_not_finite_ends_alone",
    ),
    Mutant(
        "sk-negative-ids",
        "sketch.SketchWorkflow",
        "            if not all(0 <= item < self._vocabulary for item in value):\n",
        "            if max(value) >= self._vocabulary:\n",
        (
            "contracts/workflow.md: Preparing gives for each task, in order, a request ..., all of them of "
            "the model's vocabulary, or the error that is its own / writing/workflow.md: your `check` looks "
            "at: it refuses those behind the model's vocabulary"
        ),
        reason=(
            "No list of token ids had a negative one beside others; lists now have wrong ids in every place, "
            "and what is prepared of any input is of the vocabulary."
        ),
        now="workflow.what_cannot_be_prepared_ends_alone",
    ),
)
