"""Names and forms of the contract before 1.0 and their replacements, for hints in error messages."""

from __future__ import annotations

__all__ = ["ATTRIBUTES", "HOOKS", "KEYWORDS", "NAMES", "PARAMETERS"]

EXAMPLES = (
    "Example is a modifier's now: Example(options, prompt_token_ids, generated, logits); a strategy's is "
    "GrammarExample(constraint, accepted, rejected), both of guideway.api"
)

NAMES = {
    "guideway.api.errors": "guideway.api.errors is now guideway.errors; guideway.api has the same names",
    "guideway.api.grammar.Example": EXAMPLES,
    "guideway.api.json_schema": "guideway.api.json_schema is now guideway.json_schema",
    "guideway.api.json_schema_cases": "guideway.api.json_schema_cases is now part of guideway.json_schema.prober",
    "guideway.api.json_schema_probe": (
        "guideway.api.json_schema_probe is now guideway.json_schema.prober, with SupportTable in "
        "guideway.json_schema.support"
    ),
    "guideway.builtin": (
        "guideway.builtin is gone: devices to derive from are guideway.devices.numpy.device and "
        "guideway.devices.torch.device, philox is guideway.devices.philox, the reference strategy is "
        "guideway_conformance.reference"
    ),
    "guideway.constraints": "guideway.constraints is now guideway.runtime, its vocabularies are guideway.vocabulary",
    "guideway.engine": "guideway.engine is now guideway_engine; guideway has Engine and EngineConfig as before",
    "guideway.json_schema.cases": "guideway.json_schema.cases is now part of guideway.json_schema.prober",
    "guideway.json_schema.prober.SupportTable": (
        "guideway.json_schema.prober.SupportTable is now guideway.json_schema.support.SupportTable"
    ),
    "guideway.conformance": "guideway.conformance has one function, for test modules; the rest is guideway_conformance",
}
"""Hints by the former name of a module, of its package, or of a name that was removed from a module."""

KEYWORDS = {("Example", keyword): EXAMPLES for keyword in ("constraint", "accepted", "rejected")}
"""Hints by class and removed keyword of its constructor."""

HOOKS = {"guideway_commands": "a command is an entry point of the group 'guideway.commands', and needs no hook"}
"""Hints by the former name of a hook."""

ATTRIBUTES = {
    ("modifier", "order"): (
        "delete it: modifiers of one stage act in the order in which the configuration lists them; one of your own by "
        "that name needs another"
    ),
}
"""Hints by kind and the former name of an attribute of the class or its instances."""

PARAMETERS = {
    ("modifier", "start", "compiled"): (
        "write def start(self, request, sequence, compiled), the last of which is what `compile` returned for the "
        "request, None where the class does not override that"
    ),
}
"""Hints by kind, method and parameter that the method did not have before."""
