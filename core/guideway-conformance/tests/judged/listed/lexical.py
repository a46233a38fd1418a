"""Mistakes in `judged.plugins.lexical`: sparse lexical vectors, workflow."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "lexical-no-attention-mask",
        "lexical.LexicalWorkflow",
        ("            hidden = self._model(input_ids=ids, attention_mask=mask.long()).last_hidden_state\n"),
        "            hidden = self._model(input_ids=ids).last_hidden_state\n",
        ("contracts/workflow.md: A request's result is the same alone, among others, and in another order."),
        first="workflow.company_changes_nothing",
    ),
    Mutant(
        "lexical-keys-of-a-mapping",
        "lexical.LexicalWorkflow",
        '            if len(value) != 1 or not set(value) <= {"prompt", "prompt_token_ids"}:\n',
        '            if not set(value) <= {"prompt", "prompt_token_ids"}:\n',
        (
            "contracts/workflow.md: The input processor passes or raises `InvalidRequest`, whatever "
            "the input and its parameters are."
        ),
        first="workflow.passes_or_refuses",
    ),
    Mutant(
        "lexical-floor-ignored",
        "lexical.LexicalWorkflow",
        '        order = order[weights[order] >= params.get("floor", 0.0)]\n',
        "",
        (
            "contracts/workflow.md: Nothing that a caller asks for is ignored: a parameter that the "
            "workflow does not know is refused."
        ),
        reason=(
            "A parameter whose name the suite did not know was never tried; now words of the check's "
            "code are, and each that it takes has to be read by a part."
        ),
        now="workflow.what_it_does_not_know_is_refused",
    ),
    Mutant(
        "lexical-one-buffer",
        "lexical.LexicalWorkflow",
        (
            "    def build(self, work: Any) -> PaddedStep:\n"
            "        lengths = np.array([request.num_tokens for request in work], dtype=np.int64)\n"
            "        token_ids = np.zeros((len(work), int(lengths.max())), dtype=np.int64)\n"
        ),
        (
            "    _buffer = np.zeros(0, dtype=np.int64)\n"
            "\n"
            "    def build(self, work: Any) -> PaddedStep:\n"
            "        lengths = np.array([request.num_tokens for request in work], dtype=np.int64)\n"
            "        size = len(work) * int(lengths.max())\n"
            "        if size > len(self._buffer):\n"
            "            self._buffer = np.zeros(2 * size, dtype=np.int64)\n"
            "        token_ids = self._buffer[:size].reshape(len(work), -1)\n"
            "        token_ids[:] = 0\n"
        ),
        (
            "workflows.md: Every driver gives the same results (double_buffered: with two steps on "
            "their way to the worker); contracts/workflow.md: A request's result is the same alone, "
            "among others, and in another order."
        ),
        reason="Each step was computed before the next was built; now several are on their way.",
        now="workflow.steps_may_overlap",
    ),
    Mutant(
        "lexical-stays-on-the-cpu",
        "lexical.LexicalWorkflow",
        "        self._model = model.to(context.device).eval()\n",
        "        self._model = model.eval()\n",
        (
            "contracts/workflow.md: A runner loads the weights with the `dtype` and on the `device` "
            "of its context, or refuses them."
        ),
        first="workflow.weights_are_as_the_context_says",
    ),
    Mutant(
        "lexical-any-that-is-not-finite",
        "lexical.LexicalWorkflow",
        "        if not np.isfinite(weights).all():\n",
        "        if not np.isfinite(output.weights).all():\n",
        (
            "contracts/workflow.md: `results` [...] has a result or an error in the place of each "
            "request; where they are of one, the others have theirs."
        ),
        reason=(
            "Only dicts, lists and arrays of outputs were spoiled; now named tuples and dataclasses "
            "are, and a model overflows for one word."
        ),
        now="workflow.what_is_not_finite_ends_alone",
    ),
)
