"""Mistakes in `judged.plugins.rescale`: scales some layers, worker."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "rs-through-data",
        "rescale.Rescale",
        "                module.weight.copy_(weight * factor)\n",
        "                module.weight.data.copy_(weight * factor)\n",
        (
            "contracts/worker.md: Once the model is loaded, weights are changed by assignment or in place "
            "under `torch.no_grad`, and not through ``.data``"
        ),
        first="worker.weights_change_in_the_open",
    ),
    Mutant(
        "rs-layer-off-by-one",
        "rescale.Rescale",
        "            if not 0 <= index < len(linear):\n",
        "            if not 0 <= index <= len(linear):\n",
        (
            "contracts/worker.md: An option ... whose value is none that it can work with, alone or beside "
            "others, is refused with InvalidConfiguration when it is built, or when the model is loaded if "
            "only that shows it"
        ),
        reason=(
            "No layer was named that is the first one which is not there; each number up to that of all "
            "modules is named now."
        ),
        now="worker.takes_or_refuses_its_options",
    ),
    Mutant(
        "rs-removes-while-iterating",
        "rescale.Rescale",
        ("        while self._rescale_handles:\n            self._rescale_handles.pop().remove()\n"),
        (
            "        for handle in self._rescale_handles:\n"
            "            handle.remove()\n"
            "            self._rescale_handles.remove(handle)\n"
        ),
        (
            "contracts/worker.md: When a mixin has closed, the modules of the model have the hooks that they "
            "had before it, and no others"
        ),
        first="worker.takes_its_hooks_with_it",
    ),
    Mutant(
        "rs-clamps-in-float32",
        "rescale.Rescale",
        "        return output.clamp(-most, most)\n",
        "        return output.float().clamp(-most, most)  # exact, whatever the type\n",
        (
            "contracts/worker.md: While a mixin is at work and after it closed, the model still runs, and "
            "gives logits of the same shape, whatever the type of its weights is"
        ),
        first="worker.leaves_the_model_usable",
    ),
    Mutant(
        "rs-attribute-without-name",
        "rescale.Rescale",
        "        self._rescale_modules = [linear[index] for index in self._rescale_options.layers]\n",
        (
            "        self._linear = linear\n"
            "        self._rescale_modules = [self._linear[index] for index in self._rescale_options.layers]\n"
        ),
        (
            "contracts/worker.md: an attribute that it makes after its `__init__`, where no host sees a "
            "clash, has the mixin's name in it."
        ),
        first="worker.works_in_one_object_with_others",
    ),
)
