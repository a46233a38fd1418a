"""Mistakes in `judged.plugins.borrowed`: a device of torch whose scratch memory is borrowed from a pool."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "borrowed-buffer-stays-in-the-pool",
        "borrowed.Borrowed",
        "buffer = free.pop()",
        "buffer = free[-1]",
        (
            "writing/device.md: Steps overlap. A host may run two steps of one backend in two threads ... So "
            "share no scratch memory between calls."
        ),
        first="device.overlapping_steps",
    ),
    Mutant(
        "borrowed-warped-logits-from-the-pool",
        "borrowed.Borrowed",
        (
            "        x = logits.to(torch.float32, copy=True)\n"
            "        self._mask(x, bitmask, rows)\n"
            "        if added is not None:\n"
            "            x = self.ops.add_at(x, *added)\n"
            "        return x.mul_(factors.float()[:, None])"
        ),
        (
            "        with self.pool.borrow(tuple(logits.shape), torch.float32) as x:\n"
            "            x.copy_(logits)\n"
            "            self._mask(x, bitmask, rows)\n"
            "            if added is not None:\n"
            "                x = self.ops.add_at(x, *added)\n"
            "            return x.mul_(factors.float()[:, None])"
        ),
        ("api/device.py: No later call changes a result. (writing/device.md: Never reuse the memory of a result.)"),
        first="device.operations_do_not_remember",
    ),
    Mutant(
        "borrowed-two-upload-buffers",
        "borrowed.Borrowed",
        "buffer = torch.empty(int(ends[-1]), dtype=torch.uint8)",
        (
            "size = int(ends[-1])\n"
            '        rings = self.__dict__.setdefault("_rings", {})\n'
            "        ring = rings.setdefault(size, [torch.empty(size, dtype=torch.uint8) for _ in range(2)])\n"
            "        ring.reverse()  # one is filled while the other is read\n"
            "        buffer = ring[0]"
        ),
        (
            "contracts/device.md: The payload that `upload` returned does not change when it is called "
            "again, be it with one of the same shapes: those of one step are uploaded before the first is "
            "applied."
        ),
        first="device.uploads_stay",
    ),
    Mutant(
        "borrowed-negative-strides",
        "borrowed.Borrowed",
        "all(s > 0 or n < 2 for s, n in strides)",
        "all(s != 0 or n < 2 for s, n in strides)",
        (
            "api/device.py from_logits: arrays of this library, NumPy arrays or ... in float16, bfloat16 "
            "(not NumPy) or float32 and with any strides"
        ),
        reason="No logits had strides below 0; several have now, for every operation.",
        now="device.from_logits_of_numpy",
    ),
    Mutant(
        "borrowed-nearly-zero-is-greedy",
        "borrowed.Borrowed",
        "cold = draw.temperatures == 0",
        "cold = draw.temperatures < 1e-5",
        "api/device.py masked_sample: `masked_argmax`, but with a draw in each row whose temperature is not 0",
        first="device.masked_sample_draws",
    ),
    Mutant(
        "borrowed-values-rounded-first",
        "borrowed.Borrowed",
        ".index_add_(0, of, values.double())",
        ".index_add_(0, of, values.to(x.dtype).double())",
        (
            "api/device.py add_at: Values are finite or -inf, so that -inf stays -inf. (contracts/device.md: "
            "The operations that change an array keep its dtype, and take values and factors of float32 for "
            "one of float16.)"
        ),
        reason="No value was larger than the largest number of float16; values are now, for each type.",
        now="device.add_at_minus_infinity",
    ),
    Mutant(
        "borrowed-one-scope-for-all",
        "borrowed.Borrowed",
        "return torch.no_grad()",
        ('if not hasattr(self, "_scope"):\n            self._scope = torch.no_grad()\n        return self._scope'),
        (
            "writing/device.md: `scope()` returns a new context manager for each step. (api/device.py scope: "
            "Each step has a new one, entered in the thread of that step; steps of one backend may overlap "
            "in threads of their own.)"
        ),
        first="device.scope_of_each_step",
    ),
)
