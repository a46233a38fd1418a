"""Mistakes in `judged.plugins.torchlets`: a device of torch tensors, all fused."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "t-upload-reuses-its-buffer",
        "torchlets.Torchlets",
        "        buffer = np.zeros(size, dtype=np.uint8)\n",
        (
            '        kept = self.__dict__.setdefault("staging", np.zeros(1 << 16, dtype=np.uint8))\n'
            "        buffer = kept[:size] if size <= len(kept) else np.zeros(size, dtype=np.uint8)\n"
        ),
        (
            "'Their results are arrays of their own ...: no later call changes them, nor a change of what "
            "they were computed from.' docs/writing/device.md: 'Never reuse the memory of a result.'"
        ),
        reason="Each payload was looked at before the next was uploaded; now several of one shape are.",
        now="device.uploads_stay",
    ),
    Mutant(
        "t-upload-aligned-to-four",
        "torchlets.Torchlets",
        "ALIGNED = 16",
        "ALIGNED = 4",
        (
            "`upload` gives a payload with the same rows, arrays and shared arrays by the same names, and "
            "leaves its argument."
        ),
        first="device.upload_takes_parts",
    ),
    Mutant(
        "t-upload-in-memory-order",
        "torchlets.Torchlets",
        "np.ascontiguousarray(array).reshape(-1).view(np.uint8)",
        'array.ravel("K").view(np.uint8)',
        (
            "`upload` gives a payload with the same rows, arrays and shared arrays by the same names, and "
            "leaves its argument."
        ),
        reason="Arrays of payloads lay in the order of C; now in others too.",
        now="device.upload_keeps_payloads",
    ),
    Mutant(
        "t-download-widens-float16",
        "torchlets.Torchlets",
        "a.float() if a.dtype == torch.bfloat16 else a",
        "a.float() if a.dtype.itemsize == 2 else a",
        "Arrays of float32, float16, int32, int64 and bool are of the same dtype when they come back.",
        first="device.asarray_keeps_dtypes",
    ),
    Mutant(
        "t-one-scope-for-all-steps",
        "torchlets.Torchlets",
        "        return torch.inference_mode()\n",
        '        return self.__dict__.setdefault("inference", torch.inference_mode())\n',
        "scope: 'Each step has a new one, entered in the thread of that step.'",
        reason="Scopes were entered one after the other; now two of one time have to be two.",
        now="device.scope_of_each_step",
    ),
    Mutant(
        "t-categorical-at-the-boundary",
        "torchlets.Torchlets",
        "past = (sums > uniforms.double()",
        "past = (sums >= uniforms.double()",
        ("`categorical` draws the first column up to which the probabilities sum to more than the uniform number."),
        reason="No number was exactly a sum of probabilities; now there are such, where all sums are exact in float32.",
        now="device.categorical_inverts",
    ),
    Mutant(
        "t-where-rows-through-float",
        "torchlets.Torchlets",
        "values = torch.as_tensor(values, device=self.device).to(x.dtype)",
        "values = torch.as_tensor(values, dtype=torch.float32, device=self.device).to(x.dtype)",
        (
            "`gather`, `scatter` and `where_rows` take arrays of integers and bools too, and keep their "
            "dtype. (guideway.api: '``x[rows[i]] = where(condition[i], values[i], x[rows[i]])``')"
        ),
        reason="The large integers were not among the values that were written.",
        now="device.changes_of_integers_and_bools",
    ),
    Mutant(
        "t-scale-every-row-in-order",
        "torchlets.Torchlets",
        (
            "        rows = rows.long()\n"
            "        return x.index_put_((rows,), (x[rows] * factors[:, None]).to(x.dtype))\n"
        ),
        (
            "        if len(rows) == len(x):  # all of them\n"
            "            return x.mul_(factors[:, None])\n"
            "        rows = rows.long()\n"
            "        return x.index_put_((rows,), (x[rows] * factors[:, None]).to(x.dtype))\n"
        ),
        ("`scale_rows` multiplies row ``rows[i]`` by ``factors[i]``, whatever the order, and leaves the other rows."),
        first="device.float16_changes",
    ),
    Mutant(
        "t-topk-unsorted",
        "torchlets.Torchlets",
        "values, columns = x.topk(k, dim=1)",
        "values, columns = x.topk(k, dim=1, sorted=False)",
        "topk: 'The k largest values of each row in descending order, and their columns'",
        first="device.topk_values",
    ),
    Mutant(
        "t-argmax-by-topk",
        "torchlets.Torchlets",
        ("    def argmax(self, x: Tensor) -> Tensor:\n        return x.argmax(1)\n"),
        ("    def argmax(self, x: Tensor) -> Tensor:\n        return x.topk(1, dim=1).indices[:, 0]\n"),
        "argmax: '``int[rows]``: the column of each row's largest value, the first one of equals.'",
        reason="Rows had two or three equals, or nothing else; now there are rows of few different values.",
        now="device.argmax_of_equals",
    ),
    Mutant(
        "t-seed-keeps-its-sign",
        "torchlets.Torchlets",
        "(seeds & WORD, (seeds >> 32) & WORD)",
        "(seeds & WORD, seeds >> 32)",
        ("uniform: 'Philox4x32-10 of key ``seeds[i]`` (64 bits, low word first)' ... 'The same bits on every device.'"),
        first="device.uniform_words",
    ),
    Mutant(
        "t-token-lists-of-16-bits",
        "torchlets.Torchlets",
        "self.ops.asarray(lists.token_ids[meant]).long()",
        "self.ops.asarray(lists.token_ids[meant].astype(np.uint16)).long()",
        "`apply_token_lists` forbids what a list refuses, or all but what it allows, as `apply_bitmask` would.",
        first="device.fused_large_vocabularies",
    ),
    Mutant(
        "t-warp-trusts-factors",
        "torchlets.Torchlets",
        "return x.mul_(factors[:, None]).masked_fill_(forbidden, -torch.inf)",
        "return x.mul_(factors[:, None])",
        (
            "A token that the mask or the model forbids is -inf after `warp_masked`, whatever is added and "
            "whatever the factor."
        ),
        reason="Factors are positive, which the contract says now: it breaks nothing.",
        correct=True,
    ),
    Mutant(
        "t-choosing-masks-in-place",
        "torchlets.Torchlets",
        "return torch.where(self._allowed(bitmask, rows, *x.shape), x, -torch.inf)",
        "return x.masked_fill_(~self._allowed(bitmask, rows, *x.shape), -torch.inf)",
        "masked_argmax: '`logits` itself does not change.'",
        first="device.fused_only_read",
    ),
    Mutant(
        "t-sample-clamps-temperatures",
        "torchlets.Torchlets",
        "drawn = (x / (draw.temperatures + cold)[:, None]",
        "drawn = (x / draw.temperatures.clamp(min=1e-2)[:, None]",
        "masked_sample: 'the column of the largest ``logits[i, j] / temperatures[i] - log(-log(u[i, j]))``'",
        reason="Draws were tried at temperatures above 0.5; below, only whether a token is allowed.",
        now="device.masked_sample_draws",
    ),
    Mutant(
        "t-writes-to-read-only-logits",
        "torchlets.Torchlets",
        "if not logits.flags.writeable or min(logits.strides) <= 0:",
        "if min(logits.strides) <= 0:",
        "Logits the model keeps in memory nobody may write to are masked all the same.",
        reason="Read-only logits came as arrays of the device; now as a file's pages, which end who writes to them.",
        now="device.logits_of_read_only_memory",
    ),
    Mutant(
        "t-cuda-that-is-not-there",
        "torchlets.Torchlets",
        "except (RuntimeError, AssertionError) as error:",
        "except RuntimeError as error:",
        "A device that does not exist is an `InvalidConfiguration`.",
        reason="Only invented devices were asked for; now accelerators that may be missing too.",
        now="device.refuses_unknown_devices",
    ),
    Mutant(
        "t-masks-in-one-scratch",
        "torchlets.Torchlets",
        (
            "    def _allowed(self, bitmask: Array, rows: Array, num_rows: int, width: int) -> Tensor:\n"
            '        """``bool[num_rows, width]``: what masks allow; a row without one is allowed '
            'everything."""\n'
            "        if isinstance(rows, np.ndarray):\n"
            "            bitmask, rows = self.ops.asarray(bitmask), self.ops.asarray(rows)\n"
            "        allowed = torch.ones((num_rows + 1, width), dtype=torch.bool, device=self.ops.device)\n"
        ),
        (
            "    scratch: dict[Any, Tensor] = {}\n"
            "\n"
            "    def _allowed(self, bitmask: Array, rows: Array, num_rows: int, width: int) -> Tensor:\n"
            '        """``bool[num_rows, width]``: what masks allow; a row without one is allowed '
            'everything."""\n'
            "        if isinstance(rows, np.ndarray):\n"
            "            bitmask, rows = self.ops.asarray(bitmask), self.ops.asarray(rows)\n"
            "        size = num_rows + 1, width, self.ops.device\n"
            "        if size not in self.scratch:\n"
            "            self.scratch[size] = torch.empty((num_rows + 1, width), dtype=torch.bool, "
            "device=self.ops.device)\n"
            "        allowed = self.scratch[size].fill_(True)\n"
        ),
        (
            "Two backends, each in a thread of its own, do not disturb one another. / Two backends do not "
            "share state: what one does changes nothing of the other's arrays."
        ),
        first="device.large_masks_in_several_threads",
    ),
)
