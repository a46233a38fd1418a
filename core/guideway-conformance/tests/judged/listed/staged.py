"""Mistakes in `judged.plugins.staged`: a torch device that keeps tables by shape."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "staged-mask-scratch-kept-by-shape",
        "staged.Staged",
        "        kept = torch.ones(shape[0] + 1, shape[1], dtype=torch.bool, device=self.ops.device)\n",
        (
            '        scratch = vars(self).setdefault("scratch", {})\n'
            "        if shape not in scratch:\n"
            "            scratch[shape] = torch.empty(shape[0] + 1, shape[1], "
            "dtype=torch.bool, device=self.ops.device)\n"
            "        kept = scratch[shape].fill_(True)\n"
        ),
        (
            "contracts/device: 'A host enters `scope()` anew for each step, and uses arrays of one step in "
            "the next; steps may overlap, and each has a scope of its own.' (scope: 'entered in the thread "
            "of that step')"
        ),
        reason="Threads had a backend each; now two steps of one overlap.",
        now="device.overlapping_steps",
    ),
    Mutant(
        "staged-add-at-flattens",
        "staged.Staged",
        "        return x.index_put_((rows.long(), columns.long()), values.to(x.dtype), accumulate=True)\n",
        (
            "        flat = rows.long() * x.shape[1] + columns.long()\n"
            "        x.reshape(-1).index_add_(0, flat, values.to(x.dtype))\n"
            "        return x\n"
        ),
        (
            "contracts/device: '`add_at` adds ``values[i]`` at ``x[rows[i], columns[i]]`` and changes "
            "nothing else'; api.device from_logits: 'with any strides'"
        ),
        reason="Only masks and fused operations were called on views; now all are.",
        now="device.operations_on_views",
    ),
    Mutant(
        "staged-where-rows-condition-per-row",
        "staged.Staged",
        "        condition = torch.as_tensor(condition, device=self.device)\n",
        (
            "        condition = torch.as_tensor(condition, device=self.device)\n"
            "        if condition.ndim == 1:  # one per row\n"
            "            condition = condition[:, None]\n"
        ),
        (
            "api.device where_rows: '`condition` (an array or a bool) and `values` (an array or a number) "
            "broadcast to ``[len(rows), width]``'"
        ),
        first="device.where_rows_broadcasts",
    ),
    Mutant(
        "staged-gather-all-rows-in-order",
        "staged.Staged",
        "        return x.index_select(0, rows) if columns is None else x[rows[:, None], columns.long()]\n",
        (
            "        if columns is None:\n"
            "            return x.clone() if len(rows) == len(x) else x.index_select(0, rows)\n"
            "        return x[rows[:, None], columns.long()]\n"
        ),
        ("contracts/device: '`gather` without columns takes whole rows, in the order asked for, a row also twice.'"),
        first="device.float16_changes",
    ),
    Mutant(
        "staged-forbid-from-minus-zero",
        "staged.Staged",
        "        x[:, column:] = -torch.inf\n",
        ("        padding = x.shape[1] - column\n        x[:, -padding:] = -torch.inf\n"),
        ("api.device forbid_from: '``x[:, column:] = -inf``'; contracts/device: 'the columns before keep their bits'"),
        first="device.forbid_from_forbids",
    ),
    Mutant(
        "staged-categorical-at-least",
        "staged.Staged",
        "        past = (sums > uniforms.double()[:, None] * sums[:, -1:]) & (weights > 0)\n",
        "        past = (sums >= uniforms.double()[:, None] * sums[:, -1:]) & (weights > 0)\n",
        (
            "contracts/device: '`categorical` draws the first column up to which the probabilities sum to "
            "more than the uniform number.'"
        ),
        first="device.categorical_inverts",
    ),
    Mutant(
        "staged-sample-greedy-below-eps",
        "staged.Staged",
        "        cold = draw.temperatures == 0\n",
        "        cold = draw.temperatures < 1e-5\n",
        (
            "api.device masked_sample: 'with a draw in each row whose temperature is not 0'; "
            "contracts/device: 'at small temperatures too'"
        ),
        reason="The smallest temperature was 1e-4; now it is 1e-30.",
        now="device.masked_sample_draws",
    ),
    Mutant(
        "staged-lists-padding-wraps",
        "staged.Staged",
        "        inside = (lists.token_ids < width) & (rows[entries] >= 0)\n",
        "        inside = lists.token_ids < width\n",
        (
            "contracts/device: 'Entries whose row is -1 are padding to fused operations too, wherever and "
            "however many they are.'; apply_token_lists: 'a row may be -1'"
        ),
        first="device.fused_padding",
    ),
    Mutant(
        "staged-from-logits-stage-kept",
        "staged.Staged",
        "        return logits.to(self.ops.device)\n",
        (
            '        stages = vars(self).setdefault("stages", {})\n'
            "        place = (tuple(logits.shape), logits.dtype)\n"
            "        if place not in stages:\n"
            "            stages[place] = torch.empty(logits.shape, dtype=logits.dtype, device=self.ops.device)\n"
            "        return stages[place].copy_(logits)\n"
        ),
        (
            "writing/device: '**Never reuse the memory of a result.** No later call changes a result ... So "
            "do not reuse buffers.'; contracts/device: 'uses arrays of one step in the next; steps may "
            "overlap'"
        ),
        first="device.download_results_stay",
    ),
    Mutant(
        "staged-scope-is-one-object",
        "staged.Staged",
        "        return torch.inference_mode()\n",
        (
            '        if not hasattr(self, "inference"):\n'
            "            self.inference = torch.inference_mode()\n"
            "        return self.inference\n"
        ),
        "api.device scope: 'Each step has a new one, entered in the thread of that step.'",
        first="device.scope_of_each_step",
    ),
    Mutant(
        "staged-warp-adds-in-16-bits",
        "staged.Staged",
        (
            "        x = logits.to(torch.float32, copy=True)\n"
            "        x = x.masked_fill_(~self._kept(tuple(logits.shape), bitmask, rows), -torch.inf)\n"
            "        if added is not None:\n"
            "            x = self.ops.add_at(x, *added)\n"
            "        return x.mul_(factors[:, None])\n"
        ),
        (
            "        x = self.apply_bitmask(logits, bitmask, rows)\n"
            "        if added is not None:\n"
            "            x = self.ops.add_at(x, *added)\n"
            "        return x.float() * factors[:, None]\n"
        ),
        ("contracts/device: '`warp_masked` masks, then adds, then multiplies each row by its factor, all in float32.'"),
        first="device.warp_masked_warps",
    ),
)
