"""The mutants of guideway-legacy that no check can distinguish from it, and why: see `survivors`.

Its own tests catch each of them whose behavior differs. The others change the size of a buffer, a number that is not
read, or the check of ``zip`` for lengths that are equal."""

from __future__ import annotations

__all__ = ["LEGACY"]

NUM_PROMPTS = "num_prompts = np.array([0 if state is None else state.num_prompt for state in states], dtype=np.int32)"
MEMBERS = 'members = [(f"[{i}].{name}", held) for i, one in enumerate(target) for name, held in _holdings(one).items()]'
LEGACY: dict[str, dict[str, tuple[str | tuple[str, ...], ...]]] = {
    "params.py": {
        "only processors of vLLM read them, and none of them is certified": (
            "if params.temperature == 0:  # vLLM's values for greedy sampling",
        ),
    },
    "modifier.py": {
        "only processors of vLLM are tried, or read parameters, and none of them is certified": (
            ("try_on(maker, params, past, self.context.vocabulary.logits_width)", "the statement is dropped"),
            ("if missed := missed or params.missed:", "and and or change places"),
        ),
        "an owner is read only of a state with a key, and start gives such a state another": (
            ('self.owner: tuple[str, int] = ("", 0)', "0 becomes 1"),
        ),
        "the buffer grows when it is full, instead of when it has to": (
            ("if end > len(self._buffer):", "Gt becomes GtE"),
        ),
        "the buffer grows by more or less at a time, and holds the same": (
            (
                "self._buffer = np.resize(self._buffer, max(end, 2 * len(self._buffer)))",
                "Mult becomes Add",
                "2 becomes 3",
            ),
        ),
        "only subclasses get there, and what is certified is the class itself": (
            "super().__init_subclass__()",
            'declared = {"processors": tuple(cls.processors), "where": f"modifier.{cls.name}"}',
            'cls.transform = type(f"{cls.__name__}Transform", (LegacyTransform,), declared)',
        ),
        "it reads neither options nor context where the base class keeps them": (
            ("super().__init__(options, context)", "the statement is dropped"),
        ),
        "it is read for extra_args, which no request of the suite gives, and for what remembers: nothing here": (
            ("self._vllm = [", "the statement is dropped"),
        ),
        "only a state with a key takes one, and the processors that are certified need none": (
            ("self._keys = count(secrets.randbits(62))", "the statement is dropped"),
        ),
        "keys begin anywhere, and one that no longer fits has a chance of about one in 2**63": (
            ("self._keys = count(secrets.randbits(62))", "62 becomes 63"),
        ),
        "which extra_args it refuses is its own affair, and no request of the suite gives any": (
            ("if options.extra_args and not self._vllm:", "Not is dropped"),
        ),
        "only a modifier with processors that remember gets there, and those that are certified do not": (
            "state.params = params.to_json()",
            "state.owner = (request.request_id, sequence.index)",
            "entry = self._live.setdefault(state.owner, [NO_KEY, 0])",
            "entry[0] = next(self._keys) if entry[0] == NO_KEY else entry[0]",
            "entry[1] += 1",
            "state.key = entry[0]",
            "entry = self._live[state.owner]",
            "entry[1] -= 1",
            "if entry[1] == 0:",
        ),
        "it then lets no draft pass, and how many may pass is the modifier's own affair": (
            ("return len(token_ids) if state.key == NO_KEY else 0", "the two cases change places", "Eq becomes NotEq"),
        ),
        "of a state with a key, which the processors that are certified do not need": (
            ("return len(token_ids) if state.key == NO_KEY else 0", "0 becomes 1"),
        ),
        "None has no rows here": (
            ("past = [state.length if state is not None else 0 for state in states]", "0 becomes 1"),
            (NUM_PROMPTS, "0 becomes 1"),
        ),
        "which drafts it refuses matters for states with a key, which the processors that are certified do not need": (
            ("if np.any((keys[sequences] != NO_KEY) & (within > 0)):", "Gt becomes GtE", "0 becomes 1"),
        ),
        "a payload without rows has a column of nothing": (
            ("token_ids = np.full((len(rows), lengths.max(initial=0)), -1, dtype=np.int32)", "0 becomes 1"),
            ("found = np.zeros((len(texts), max(map(len, texts), default=0)), dtype=np.uint8)", "0 becomes 1"),
        ),
        "the ids behind those that num_tokens counts are never read": (
            (
                "token_ids = np.full((len(rows), lengths.max(initial=0)), -1, dtype=np.int32)",
                "USub is dropped",
                "1 becomes 2",
            ),
        ),
        "both have an entry for each row": (
            (
                "for row, (sequence, draft) in enumerate(zip(sequences.tolist(), within.tolist(), strict=True)):",
                "True becomes False",
            ),
        ),
        "of a state without a key the params are empty at any time": (
            (
                'params[row] = state.params if state.length == state.num_prompt else b""',
                "the statement is dropped",
                "the two cases change places",
                "Eq becomes NotEq",
            ),
        ),
        "only processors of vLLM are asked, and none of them is certified": (
            'validate = getattr(target, "validate_params", None)',
            "if validate is not None:",
            "validate(params)",
        ),
        "the params that are written are empty: the processors that are certified need none": (
            ("found[row, : len(text)] = np.frombuffer(text, dtype=np.uint8)", "the statement is dropped"),
        ),
    },
    "transform.py": {
        "only what remembers has a _Sequence, and no processor that is certified does": (
            "self._calls = calls",
            "self._next = num_prompt",
            "token_ids = past.token_ids",
            "if len(token_ids) == self._next - 1 and token_ids == self._seen:",
            "if self._answer is None:",
            "if isinstance(self._answer, Exception):",
            "if len(token_ids) != self._next or token_ids[: len(self._seen)] != self._seen:",
            "self._seen, self._next, self._answer = token_ids, len(token_ids) + 1, None",
            "self._answer = in_order(self._calls, past, row).clone()",
            "self._answer = error",
            'after[i] = self._sequence(key, past, bytes(params).rstrip(b"\\0")).apply(past, before[i])',
            "if key not in self._sequences:",
            "if len(past.token_ids) != past.num_prompt:",
            "self._sequences[key] = _Sequence(self._calls(VllmParams.from_json(params)), past.num_prompt)",
        ),
        "the context is read for processors of vLLM only, the options nowhere": (
            ("super().__init__(context, options)", "the statement is dropped"),
        ),
        "there are no sequences to forget, as no processor that is certified remembers": (
            ('live = set(payload.shared["live"].tolist())', "the statement is dropped"),
            (
                "self._sequences = {key: sequence for key, sequence in self._sequences.items() if key in live}",
                "the statement is dropped",
                "In becomes NotIn",
            ),
        ),
        "all have an entry for each row": (
            ("entries = zip(*(payload.arrays[name].tolist() for name in names), strict=True)", "True becomes False"),
        ),
        "only processors of vLLM get there, and none of them is certified": (
            "first = _probe(processor, make_one, where)",
            "if is_batch_level(made):",
            "if not isinstance(made, type):",
            "instance = make_one()",
            "invariant = instance.is_argmax_invariant()",
            "if invariant:",
            "target = _make(processor, lambda: new(params))",
            "return vllm_call(processor, target) if target else None",
        ),
        "only a factory of processors that remember gets there, and none is certified": (
            "kwargs = dict(processor.kwargs or {})",
        ),
    },
    "calls.py": {
        "only processors of kind callable get there, and none is certified": ("if processor.prompt:",),
        "what is said of a processor that keeps state, and none that is certified does": (
            "changed.append(name)",
            'f"{processor.label} keeps state between calls ({changed[0]!r} changed), but all sequences share it; "',
        ),
        "only processors of vLLM get there, and none of them is certified": (
            "if len(inspect.signature(target).parameters) == 3:",
        ),
        "which results it refuses is its own affair: those of the processors that are certified are rows": (
            (
                "if not isinstance(result, torch.Tensor) or result.shape != row.shape or result.dtype != row.dtype:",
                "and and or change places",
            ),
            ("if not bool((result < torch.inf).all()):", "Lt becomes LtE"),
        ),
        "of what is no batch of one, which no processor that is certified returns": (
            (
                "return scores[0] if isinstance(scores, torch.Tensor) and scores.shape[:1] == (1,) else scores",
                "and and or change places",
            ),
        ),
        "the words of an error, about what no processor that is certified returns": (
            'shape = getattr(value, "shape", None)',
            "if shape is None:",
        ),
    },
    "processors.py": {
        "of a processor per sequence or of vLLM, and none that is certified is": (
            ('return self.per_sequence or self.kind == "vllm"', "and and or change places"),
        ),
        "the name in messages, which no check reads": (
            ("if isinstance(self.target, str):", "the condition is negated"),
            'named = self.target if hasattr(self.target, "__qualname__") else type(self.target)',
        ),
        "only a subclass declares processors, and the class that is certified is none": (
            "parse_options(_NoOptions, options, where=where)",
            "found = tuple(declared)",
        ),
        "which options it refuses is its own affair, and those that are certified are right": (
            ('_check(processor, f"{where}.processors[{i}]")', "the statement is dropped"),
            ('if processor.kind != "callable" and not processor.prompt:', "NotEq becomes Eq"),
            ('if processor.kind == "vllm" and processor.kwargs is not None:', "IsNot becomes Is"),
            ("if not colon or not attributes:", "and and or change places"),
        ),
        "certified processors are classes with keywords, none per sequence: the condition is false either way": (
            (
                "if processor.per_sequence or (processor.kwargs is None and not isinstance(target, type)):",
                "and and or change places",
                "Is becomes IsNot",
                "Not is dropped",
            ),
        ),
        "only a target that is not called here gets there, and those that are certified are called": ("made = target",),
        "the words of an error, which no processor that is certified makes": (
            'f"{processor.label} could not be made with {dict(processor.kwargs or {})}: "',
        ),
        "in vllm_target, where only processors of vLLM get, and none of them is certified": (
            ("target = _resolve(processor, where)", "the statement is dropped"),
        ),
        "only processors of vLLM get there, and none of them is certified": (
            'if hasattr(target, "new_req_logits_processor") or (is_batch_level(target) and isinstance(target, type)):',
            "if is_batch_level(target):",
            'reason = "it is an object, and a batch-level processor is made anew for each sequence; name its class"',
            'elif hasattr(target, "add_request"):',
            "reason = (",
            'reason = "it has neither new_req_logits_processor nor update_state"',
            'return not hasattr(target, "new_req_logits_processor") and hasattr(target, "update_state")',
        ),
    },
    "batches.py": {
        "only processors of vLLM get there, and none of them is certified": (
            "self._processor = processor",
            "self._params = params",
            "update = None",
            "if self._output is None:",
            "self._output = past.generated",
            "update = BatchUpdate(1, (), ((0, self._params, past.prompt, self._output),), ())",
            "self._output.extend(past.generated[len(self._output) :])",
            "self._processor.update_state(update)",
            "logits = self._processor.apply(row[None])",
            'return logits[0] if hasattr(logits, "shape") and logits.shape[:1] == (1,) else logits',
            'vllm = sys.modules.get("vllm.config")  # a vLLM process imported it long ago',
            "current = None if vllm is None else vllm.get_current_vllm_config_or_none()",
            "if current is None:",
            "return Partial(scheduler_config=Partial(max_num_seqs=1))",
            "config, scheduler = copy.copy(current), copy.copy(current.scheduler_config)",
            'object.__setattr__(scheduler, "max_num_seqs", 1)',
            'object.__setattr__(config, "scheduler_config", scheduler)',
        ),
    },
    "watch.py": {
        "the first call of a processor that is certified changes nothing that is watched, so it need not be forgiven": (
            ("self._called = False", "False becomes True"),
        ),
        "it then watches less, or nothing, and the processors that are certified keep no state": (
            ("self._called = True", "the statement is dropped", "True becomes False"),
            ("for name in sorted(before.keys() | after.keys()):", "BitOr becomes BitAnd"),
            (
                "if name not in before or name not in after or not _same(before[name], after[name]):",
                "and and or change places",
            ),
            ("found[name] = (value, tuple(_items(value)))", "the statement is dropped"),
            ("found[name] = (value, tuple(_items(value)))", "the statement is dropped"),
        ),
        "the processors that are certified change nothing, so all three of these are true": (
            ("_alike(old[0], new[0])", "and and or change places"),
        ),
        "both have one length, which was asked just before": (
            ("and all(_alike(a, b) for a, b in zip(old[1], new[1], strict=True))", "True becomes False"),
        ),
        "of the inner one: what certified processors hold stays one object, and the rest is not asked": (
            (
                "return old is new or (type(old) is type(new) and hash(old) == hash(new) and (old == new) is True)",
                "and and or change places",
            ),
        ),
        "of the second and third: what certified processors hold stays one object, and the rest is not asked": (
            (
                "return old is new or (type(old) is type(new) and hash(old) == hash(new) and (old == new) is True)",
                "Is becomes IsNot",
            ),
        ),
        "what certified processors hold stays one object, and the rest is not asked": (
            (
                "return old is new or (type(old) is type(new) and hash(old) == hash(new) and (old == new) is True)",
                "Eq becomes NotEq",
                "True becomes False",
            ),
        ),
        "only objects that cannot be compared get there, and the processors that are certified hold none": (
            "return False",
        ),
        "only a list of processors gets there, and none is certified": (MEMBERS,),
        "a function has as many cells as names of them": (
            (
                'for name, cell in zip(names, getattr(target, "__closure__", None) or (), strict=False):',
                "False becomes True",
            ),
        ),
        "only functions with a closure get there, and none is certified": ("value = cell.cell_contents",),
        "only containers get there, and the processors that are certified hold none": (
            "yield len(value)",
            "if len(value) <= MAX_ITEMS:",
            "yield item",
            "if isinstance(value, dict):",
            "yield value[item]",
        ),
        "it then misses changes of tensors in place, and the processors that are certified make none": (
            (
                'elif hasattr(value, "is_inference") and not value.is_inference():',
                "the condition is negated",
                "Not is dropped",
            ),
            (
                'yield getattr(value, "_version", None)  # a tensor counts its changes in place',
                "the statement is dropped",
            ),
        ),
    },
}
"""By file and reason: lines, or a line with its changes."""
