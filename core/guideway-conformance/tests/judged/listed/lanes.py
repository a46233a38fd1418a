"""Mistakes in `judged.plugins.lanes`: a device whose downloads are made by a thread."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "lanes-upload-lock-of-its-own",
        "lanes.Lanes",
        ("        def moved(array: NDArray[Any]) -> Array:\n            with self.lock:\n"),
        ("        def moved(array: NDArray[Any]) -> Array:\n            with threading.Lock():\n"),
        (
            "api/device.py, scope: 'steps of one backend may overlap in threads of their own'; "
            "docs/writing/device.md: 'So share no scratch memory between calls.'"
        ),
        first="device.overlapping_steps",
    ),
    Mutant(
        "lanes-download-lands-with-its-first-array",
        "lanes.Lanes",
        ("array).numpy()\n        except"),
        ("array).numpy()\n                self.landed.set()\n        except"),
        (
            "docs/contracts/device.md: '`download` gives NumPy arrays of exactly the names it was "
            "given, each with its own values'; api/device.py: 'Wait for the copy and return the "
            "arrays.'"
        ),
        reason=(
            "What was downloaded took no time; now there is a large array between small ones, of "
            "each type, and threads take turns."
        ),
        now="device.downloads_bring_everything",
    ),
    Mutant(
        "lanes-uniform-remembers-without-sequences",
        "lanes.Lanes",
        "        blocks = torch.arange(-(-width // 4))[None, :].expand(len(seeds), -1)\n",
        (
            "        key = (tuple(seeds.flatten().tolist()), tuple(positions.flatten().tolist()), "
            "purpose, width)\n"
            "        if getattr(self, 'last', (None, None))[0] == key:\n"
            "            return self.last[1].clone()\n"
            "        blocks = torch.arange(-(-width // 4))[None, :].expand(len(seeds), -1)\n"
            "        self.last = (key, self._philox(seeds, sequences, positions, purpose, width, "
            "blocks))\n"
            "        return self.last[1].clone()\n"
            "\n"
            "    def _philox(self, seeds: Array, sequences: Array, positions: Array, purpose: int, "
            "width: int, blocks: Array) -> Array:\n"
        ),
        (
            "api/device.py, uniform: 'Philox4x32-10 of key ``seeds[i]`` ... at counter ``(j // 4, "
            "positions[i], sequences[i], purpose)``'; docs/writing/device.md: 'Keep results only by "
            "all arguments that they depend on.'"
        ),
        first="device.operations_do_not_remember",
    ),
    Mutant(
        "lanes-warp-in-place-of-what-it-does-not-return",
        "lanes.Lanes",
        "logits.to(torch.float32, copy=True)",
        "logits.to(torch.float32)",
        (
            "api/device.py, donates: 'Elsewhere its values are those of what is returned, or those "
            "it had.'; ArrayOps: 'An operation that raises for any other reason leaves its arguments "
            "as they were.'"
        ),
        reason=(
            "A host takes the logits for lost once `warp_masked` is called, which the contract says "
            "now: it breaks nothing."
        ),
        correct=True,
    ),
    Mutant(
        "lanes-where-rows-through-float",
        "lanes.Lanes",
        "values = torch.as_tensor(values, dtype=x.dtype)",
        "values = torch.as_tensor(values, dtype=wide(x))",
        (
            "docs/contracts/device.md: '`gather`, `scatter` and `where_rows` take arrays of integers "
            "and bools too, and keep their dtype and all of their bits.'"
        ),
        first="device.changes_of_integers_and_bools",
    ),
    Mutant(
        "lanes-scope-is-kept",
        "lanes.Lanes",
        "        return torch.no_grad()\n",
        ("        self.quiet = getattr(self, 'quiet', None) or torch.no_grad()\n        return self.quiet\n"),
        (
            "api/device.py, scope: 'Each step has a new one, entered in the thread of that step; "
            "steps of one backend may overlap in threads of their own.'"
        ),
        first="device.scope_of_each_step",
    ),
    Mutant(
        "lanes-queue-of-all-backends",
        "lanes.Lanes",
        "self.flights: queue.SimpleQueue[Flight | None] = queue.SimpleQueue()",
        "self.flights = Lanes.waiting = getattr(Lanes, 'waiting', None) or queue.SimpleQueue()",
        (
            "docs/contracts/device.md: 'Two backends do not share state'; 'A backend closes without "
            "an error, used or unused, and others of its class go on.'"
        ),
        reason="One backend was used and closed; now several are that have downloaded in turn, many times.",
        now="device.closing_ends_one_backend",
    ),
    Mutant(
        "lanes-asarray-of-no-dimension",
        "lanes.Lanes",
        'np.array(array, order="C"))',
        "np.ascontiguousarray(array))",
        (
            "docs/contracts/device.md: '`asarray` takes host arrays of any shape and memory layout, "
            "read-only ones among them.'; api/device.py: 'A device array with the values of a host "
            "array'"
        ),
        first="device.exp_elementwise",
    ),
    Mutant(
        "lanes-gather-of-every-row-is-x",
        "lanes.Lanes",
        "        return x[rows.long()] if columns is None",
        (
            "        if columns is None and torch.equal(rows.long(), torch.arange(len(x))):\n"
            "            return x[:]\n"
            "        return x[rows.long()] if columns is None"
        ),
        "api/device.py, gather: 'Always a copy.'",
        first="device.gather_copies",
    ),
)
