"""The names and forms of the contract before 1.0, and what a plugin writes now: for errors, which then say what to
change."""

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
    "guideway.api.json_schema_cases": "guideway.api.json_schema_cases is now guideway.json_schema.cases",
    "guideway.api.json_schema_probe": "guideway.api.json_schema_probe is now guideway.json_schema.prober",
    "guideway.builtin": (
        "guideway.builtin is gone: devices to derive from are guideway.devices.numpy.device and "
        "guideway.devices.torch.device, philox is guideway.devices.philox, the reference strategy is "
        "guideway_conformance.reference"
    ),
    "guideway.constraints": "guideway.constraints is now guideway.runtime, its vocabularies are guideway.vocabulary",
    "guideway.engine": "guideway.engine is now guideway_engine; guideway has Engine and EngineConfig as before",
    "guideway.conformance": "guideway.conformance has one function, for test modules; the rest is guideway_conformance",
}
"""By the former name of a module, of its package, or of what a module has no more."""

KEYWORDS = {("Example", keyword): EXAMPLES for keyword in ("constraint", "accepted", "rejected")}
"""By class and the keyword it was built with."""

HOOKS = {"guideway_commands": "a command is an entry point of the group 'guideway.commands', and needs no hook"}
"""By the hook's former name."""

ATTRIBUTES = {
    ("modifier", "order"): (
        "delete it: modifiers of one stage act in the order in which the configuration lists them; one of your own by "
        "that name needs another"
    ),
}
"""By kind and the former name of an attribute, of the class or of what is built."""

PARAMETERS = {
    ("modifier", "start", "compiled"): (
        "write def start(self, request, sequence, compiled), the last of which is what `compile` returned for the "
        "request, None where the class does not override that"
    ),
}
"""By kind, method and parameter that a method written before has no place for."""
