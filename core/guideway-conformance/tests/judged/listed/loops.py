"""Mistakes in `judged.plugins.loops`: a device of the host with compiled loops."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "loops-padding-ends-the-mask",
        "loops.Loops",
        ("        if row < 0:\n            continue\n        for w in range((width + 31) // 32):\n"),
        ("        if row < 0:\n            break\n        for w in range((width + 31) // 32):\n"),
        (
            "contracts/device: 'Entries whose row is -1 are padding: wherever and however many they are, "
            "they change nothing.'"
        ),
        first="device.padding_changes_nothing",
    ),
    Mutant(
        "loops-empty-list-does-nothing",
        "loops.Loops",
        ("        begin = 0\n        for j in range(offsets[i], offsets[i + 1]):\n"),
        (
            "        begin = 0\n"
            "        if offsets[i] == offsets[i + 1]:  # nothing listed\n"
            "            continue\n"
            "        for j in range(offsets[i], offsets[i + 1]):\n"
        ),
        "contracts/device: 'An empty list allows nothing, or refuses nothing.'",
        first="device.fused_floats",
    ),
    Mutant(
        "loops-categorical-without-shift",
        "loops.Loops",
        (
            "        largest = -np.inf\n"
            "        for value in x[row]:\n"
            "            largest = max(largest, value)\n"
            "        total = 0.0\n"
        ),
        ("        largest = 0.0  # log-probabilities are at most 0\n        total = 0.0\n"),
        (
            "api.device categorical: 'Rows need not be normalized.'; contracts/device: '`categorical` takes "
            "rows that are not normalized.'"
        ),
        first="device.categorical_of_any_total",
    ),
    Mutant(
        "loops-uniform-remembers-without-sequence",
        "loops.Loops",
        (
            "        out = np.empty((len(seeds), width), dtype=np.float32)\n"
            "        wide = (np.array(a, dtype=np.int64) for a in (seeds, sequences, positions))\n"
            "        self.compiled(philox_rows, *wide, purpose, out)\n"
            "        return out\n"
        ),
        (
            "        asked = (seeds.tobytes(), positions.tobytes(), purpose, width)\n"
            '        if asked != getattr(self, "asked", None):\n'
            "            out = np.empty((len(seeds), width), dtype=np.float32)\n"
            "            wide = (np.array(a, dtype=np.int64) for a in (seeds, sequences, positions))\n"
            "            self.compiled(philox_rows, *wide, purpose, out)\n"
            "            self.asked, self.drawn = asked, out\n"
            "        return self.drawn.copy()\n"
        ),
        (
            "contracts/device: '`uniform` depends on its arguments alone: not on earlier calls, nor on the "
            "other rows of the call.'"
        ),
        reason="No two calls in a row differed in one argument alone; now all operations are called so.",
        now="device.operations_do_not_remember",
    ),
    Mutant(
        "loops-topk-of-all-columns",
        "loops.Loops",
        "        columns = np.argpartition(x, x.shape[1] - k, axis=1)[:, x.shape[1] - k :]\n",
        "        columns = np.argpartition(-x, k, axis=1)[:, :k]\n",
        (
            "contracts/device: '`topk` gives the k largest values of each row in descending order, for "
            "every k up to the width.'"
        ),
        first="device.topk_values",
    ),
    Mutant(
        "loops-log-softmax-in-place",
        "loops.Loops",
        "        x = x.astype(np.promote_types(x.dtype, np.float32))\n",
        "        x = x.astype(np.promote_types(x.dtype, np.float32), copy=False)\n",
        (
            "contracts/device: '`cumsum`, `exp`, `log`, `log_softmax`, `gather`, `unpack_bitmask` and "
            "`uniform` leave their arguments as they are.'"
        ),
        first="device.computing_only_reads",
    ),
    Mutant(
        "loops-scatter-by-whole-rows",
        "loops.Loops",
        ("        x[rows[:, None], columns] = values\n        return x\n"),
        (
            "        held = x[rows]\n"
            "        np.put_along_axis(held, columns, values.astype(x.dtype), axis=1)\n"
            "        x[rows] = held\n"
            "        return x\n"
        ),
        "contracts/device: '`scatter` takes a row several times, as long as no pair of row and column repeats.'",
        first="device.scatter_repeated_rows",
    ),
    Mutant(
        "loops-upload-keeps-shared-tables",
        "loops.Loops",
        "    def download(self, arrays: Mapping[str, Array]) -> Copied:\n",
        (
            "    def upload(self, payload: Any) -> Any:\n"
            '        """Tables that all rows share are the same object in each step, and copied once."""\n'
            "        from dataclasses import replace\n"
            "\n"
            '        kept = vars(self).setdefault("tables", {})\n'
            "        shared = {}\n"
            "        for name, array in payload.shared.items():\n"
            "            if id(array) not in kept:\n"
            "                kept[id(array)] = (array, self.ops.asarray(array))\n"
            "            shared[name] = kept[id(array)][1]\n"
            "        return replace(super().upload(replace(payload, shared={})), shared=shared)\n"
            "\n"
            "    def download(self, arrays: Mapping[str, Array]) -> Copied:\n"
        ),
        (
            "contracts/device: '`upload` reads a payload's memory anew each time: a modifier writes its "
            "next step there.'"
        ),
        first="device.upload_reads_anew",
    ),
    Mutant(
        "loops-available-imports",
        "loops.Loops",
        '        return None if find_spec("numba") else "numba is not installed"\n',
        (
            "        import numba\n"
            "\n"
            '        version = tuple(map(int, numba.__version__.split(".")[:2]))\n'
            '        return None if version >= (0, 57) else "numba is older than 0.57"\n'
        ),
        ("contracts/device: '`available` is None or the reason why the backend cannot run here, and never raises.'"),
        reason="Everything was installed; now `available` is asked as if each package that it imports were not.",
        now="device.says_whether_it_can_run",
    ),
    Mutant(
        "loops-fastmath",
        "loops.Loops",
        "            self.loops[loop.__name__] = njit(loop, nogil=True, cache=True)\n",
        "            self.loops[loop.__name__] = njit(loop, nogil=True, cache=True, fastmath=True)\n",
        (
            "contracts/device: 'The logit of `masked_argmax` is NaN exactly where one that is considered is "
            "NaN.'; '... is -inf where nothing is allowed'"
        ),
        first="device.masked_argmax_of_nan",
    ),
    Mutant(
        "loops-download-copies-late",
        "loops.Loops",
        (
            "        self.arrays = {name: np.array(array) for name, array in arrays.items()}\n"
            "\n"
            "    def result(self) -> Mapping[str, NDArray[Any]]:\n"
            "        return self.arrays\n"
        ),
        (
            "        self.arrays = dict(arrays)\n"
            "\n"
            "    def result(self) -> Mapping[str, NDArray[Any]]:\n"
            "        self.arrays = {name: np.array(array) for name, array in self.arrays.items()}\n"
            "        return self.arrays\n"
        ),
        (
            "contracts/device: 'A download may be asked for its `result` twice, and its arrays stay as they "
            "were when it began.'"
        ),
        first="device.download_results_stay",
    ),
)
