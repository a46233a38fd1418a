"""Mistakes in `judged.plugins.deferred`: a device whose arrays are computed when they are first looked at."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "deferred-lists-are-only-noted",
        "deferred.Late",
        "kept = TokenLists(lists.offsets.copy(), lists.token_ids.copy(), lists.allow.copy())",
        "kept = lists",
        "writing/device.md: No later call changes a result, and neither does a change of its inputs.",
        reason=(
            "A device need not copy what lies on the host: `asarray` says that the host's array stays as it "
            "is until a later download is there, and the default `apply_token_lists` hands rows to "
            "`asarray`. Hosts make the lists of each step anew. The contract says the same of lists and rows "
            "now."
        ),
        correct=True,
    ),
    Mutant(
        "deferred-one-place-for-largest",
        "deferred.Late",
        "held: list[Any] = []  # both results come from one pass",
        'held = self.__dict__.setdefault("_held", [])  # both results come from one pass',
        (
            "contracts/device.md: The result of every operation depends on the arguments of that call alone "
            "...; no later call changes it. (api/device.py: No later call changes a result.)"
        ),
        first="device.overlapping_steps",
    ),
    Mutant(
        "deferred-depth-not-counted",
        "deferred.Late",
        "depth = 1 + max((a.depth",
        "depth = max((a.depth",
        (
            "api/device.py ArrayOps: ``+ - * /`` ... mean the same in every array library. "
            "(contracts/device.md: A host ... uses arrays of one step in the next.)"
        ),
        reason=(
            "The contract does not say how many operations may follow one another before a result is looked "
            "at. Hosts download the tokens of each step and keep no result on the device after it; the "
            "longest chain of a modifier here is some 60 operations, and this device fails at some 350."
        ),
        correct=True,
    ),
    Mutant(
        "deferred-one-thread-for-the-class",
        "deferred.Late",
        '        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="late-download")',
        (
            '        if "thread" not in type(self).__dict__:  # one is enough\n'
            "            type(self).thread = ThreadPoolExecutor(max_workers=1, "
            'thread_name_prefix="late-download")'
        ),
        (
            "contracts/device.md: A backend closes without an error, used or unused, and others of its class "
            "go on, in whatever order they were used."
        ),
        first="device.closing_ends_one_backend",
    ),
    Mutant(
        "deferred-difference-in-float16",
        "deferred.Late",
        ("    x = wide(x)\n    x = x - x.max(axis=1, keepdims=True)"),
        "    x = wide(x - x.max(axis=1, keepdims=True))",
        "contracts/device.md: `log_softmax` computes in at least float32, also from numbers of float16.",
        reason=(
            "Differences of all numbers were ones that float16 holds; numbers have all digits and the whole "
            "range of their type now."
        ),
        now="device.log_softmax_precision",
    ),
    Mutant(
        "deferred-sum-that-is-equal",
        "deferred.Late",
        "(sums > uniforms[:, None]",
        "(sums >= uniforms[:, None]",
        (
            "contracts/device.md: `categorical` draws the first column up to which the probabilities sum to "
            "more than the uniform number."
        ),
        first="device.categorical_inverts",
    ),
    Mutant(
        "deferred-unpacked-by-identity",
        "deferred.Late",
        "return later(unpack, bitmask, width)",
        (
            'kept = self.__dict__.setdefault("unpacked", {})  # arrays never change\n'
            "        key = id(bitmask), width\n"
            "        if key not in kept:\n"
            "            if len(kept) >= 64:\n"
            "                kept.clear()\n"
            "            kept[key] = later(unpack, bitmask, width)\n"
            "        return kept[key]"
        ),
        (
            "contracts/device.md: The result of every operation depends on the arguments of that call alone, "
            "be it the same call again or one with a single argument changed"
        ),
        reason="All arguments lived on until the check ended; each is dropped now before the next one is made.",
        now="device.arguments_that_are_gone",
    ),
)
