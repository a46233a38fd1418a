"""Mistakes in `judged.plugins.away`: guidance away from a negative prompt."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "away-no-companion-is-row-minus-one",
        "away.Away",
        ("        other_rows = ops.where_rows(other_rows, every, other_rows < 0, rows[:, None])[:, 0]\n"),
        "        other_rows = other_rows[:, 0]\n",
        ("api: Step.companion_rows: -1 where there is none; ArrayOps: The effect of an index outside is undefined."),
        reason=(
            "What `companions` gave for a request runs in each step, and this plugin gives one to each, as "
            "the docstring of `Step.companion_rows` says."
        ),
        correct=True,
    ),
    Mutant(
        "away-nothing-times-minus-infinity",
        "away.Away",
        "        guided = ops.where_rows(guided, every, own == -np.inf, -np.inf)\n",
        "",
        (
            "docs/contracts/modifier.md: -inf stays -inf, also where the logits of a companion are: it is "
            "never made finite, nor NaN."
        ),
        reason="With other options no logit was forbidden before. Some are now.",
        now="modifier.options_near_its_examples_are_served",
    ),
    Mutant(
        "away-companions-by-request-id",
        "away.Away",
        (
            "        wish = self.wish(request)\n"
            "        kept = request.prompt_token_ids if wish.keep_prompt else ()\n"
            "        return (api.Companion((*wish.negative, *kept)),)\n"
        ),
        (
            '        asked = self.__dict__.setdefault("asked", {})\n'
            "        if request.request_id not in asked:\n"
            "            wish = self.wish(request)\n"
            "            kept = request.prompt_token_ids if wish.keep_prompt else ()\n"
            "            asked[request.request_id] = (api.Companion((*wish.negative, *kept)),)\n"
            "        return asked[request.request_id]\n"
        ),
        (
            "docs/writing/modifier.md: Do not keep notes by `request_id` or `id(...)`. Both come again, for "
            "another request or object. (contracts: `companions` gives the same for the same request: "
            "whatever was asked before)"
        ),
        first="modifier.one_request_after_another",
    ),
    Mutant(
        "away-writes-into-companion-rows",
        "away.Away",
        (
            "        other_rows = ops.gather(step.companion_rows, rows)[:, :1]\n"
            "        other_rows = ops.where_rows(other_rows, every, other_rows < 0, rows[:, None])[:, 0]\n"
        ),
        (
            "        missing = ops.gather(step.companion_rows, rows) < 0\n"
            "        other_rows = ops.where_rows(step.companion_rows, rows, missing, rows[:, None])\n"
            "        other_rows = ops.gather(other_rows, rows)[:, 0]\n"
        ),
        (
            "docs/contracts/modifier.md: A transform changes nothing of the payload, nor of the step's "
            "`positions` and `companion_rows`, which other modifiers read."
        ),
        reason="With NumPy the same values were written back. What is shared can only be read there now.",
        now="modifier.arguments_stay",
    ),
    Mutant(
        "away-reads-a-dead-array",
        "away.Away",
        "        guided = own + scale[:, None] * contrast\n",
        "        guided = ops.where_rows(own, every, True, own + scale[:, None] * contrast)\n",
        (
            "api.device: After these the caller uses the RETURNED array and treats that argument as dead "
            "(docs/writing: Use the returned array of each operation, because some libraries have immutable "
            "arrays)."
        ),
        first="modifier.runs_on_every_device",
    ),
)
