"""Mistakes in `judged.plugins.plain`: a device whose arrays never change."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "p-add-infinity-to-forbidden",
        "plain.Plain",
        "np.where(here & (x != -np.inf), x + sums, x)",
        "np.where(here, x + sums, x)",
        "add_at: '``x[rows[i], columns[i]] += values[i]`` for each i; pairs may repeat; -inf stays -inf.'",
        reason="Values are finite or -inf, which the contract says now: it breaks nothing.",
        correct=True,
    ),
    Mutant(
        "p-log-softmax-in-one-number",
        "plain.Plain",
        "return x - largest - np.log(np.exp(x - largest).sum(axis=1, keepdims=True))",
        "return x - (largest + np.log(np.exp(x - largest).sum(axis=1, keepdims=True)))",
        "`log_softmax` neither overflows nor vanishes where a whole row is large or small.",
        reason="Rows were moved by 1000, and had to be as exact as a number of that size; now by up to 1e8 as well.",
        now="device.log_softmax_of_large_logits",
    ),
    Mutant(
        "p-categorical-takes-one-as-total",
        "plain.Plain",
        (
            "sums = np.exp(wide - wide.max(axis=1, keepdims=True)).cumsum(axis=1)\n"
            "        goals = uniforms.astype(np.float64) * sums[:, -1]"
        ),
        ("sums = np.exp(wide).cumsum(axis=1)\n        goals = uniforms.astype(np.float64)"),
        "categorical: 'Rows need not be normalized.'",
        first="device.results_stay",
    ),
    Mutant(
        "p-asarray-freezes-the-hosts",
        "plain.Plain",
        ('    def asarray(self, array: NDArray[Any]) -> Array:\n        return np.array(array, order="C")'),
        ('    def asarray(self, array: NDArray[Any]) -> Array:\n        return np.asarray(array, order="C")'),
        (
            "'All others only read.' (an argument of `asarray` is not among those that may change); "
            "docs/writing/device.md: 'All other arguments are read-only.'"
        ),
        first="device.masks_are_not_remembered",
    ),
    Mutant(
        "p-download-reads-the-callers-dict",
        "plain.Plain",
        "held = dict(arrays)",
        "held = arrays",
        "`download` gives NumPy arrays of exactly the names it was given, each with its own values.",
        reason="The dict of a download was left alone; now it is cleared.",
        now="device.download_names_and_types",
    ),
    Mutant(
        "p-all-share-one-thread",
        "plain.Plain",
        (
            '    def __init__(self, device: str = "cpu") -> None:\n'
            "        super().__init__(device)\n"
            '        if device != "cpu":\n'
            '            raise InvalidConfiguration(f"there is no device {device!r}", field="device")\n'
            "        self.ops: PlainOps = PlainOps()\n"
            "        self.thread: ThreadPoolExecutor | None = None\n"
        ),
        (
            '    pool: ThreadPoolExecutor = ThreadPoolExecutor(1, thread_name_prefix="plain-download")\n'
            "\n"
            '    def __init__(self, device: str = "cpu") -> None:\n'
            "        super().__init__(device)\n"
            '        if device != "cpu":\n'
            '            raise InvalidConfiguration(f"there is no device {device!r}", field="device")\n'
            "        self.ops: PlainOps = PlainOps()\n"
            "        self.thread: ThreadPoolExecutor | None = self.pool\n"
        ),
        "A backend closes without an error, used or unused, and others of its class go on.",
        first="device.closing_ends_one_backend",
    ),
    Mutant(
        "p-bfloat16-becomes-float16",
        "plain.Plain",
        "                logits = logits.float()\n",
        "                logits = logits.half()\n",
        "from_logits: 'A type that the device does not hold becomes a wider one.'",
        first="device.from_logits_of_torch_in_16_bits",
    ),
    Mutant(
        "p-scatter-takes-the-values-type",
        "plain.Plain",
        ("        made = x.copy()\n        made[rows[:, None], columns] = values\n"),
        ("        made = x.astype(np.result_type(x, values))\n        made[rows[:, None], columns] = values\n"),
        (
            "The operations that change an array keep its dtype, and take values and factors of float32 for "
            "one of float16."
        ),
        first="device.float16_changes",
    ),
    Mutant(
        "p-masks-by-addition",
        "plain.Plain",
        "        part[~allowed] = -np.inf\n",
        "        part = part + np.where(allowed, 0, -np.inf).astype(part.dtype)\n",
        "A forbidden logit is -inf afterwards, also where it was infinite, not a number or -inf already.",
        first="device.forbidden_whatever_it_was",
    ),
)
