"""Mistakes in `judged.plugins.quotas`: hooks."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "quotas-value-error",
        "quotas.Quotas",
        'raise InvalidRequest(f"tenant {request.tenant!r} may send {limit} tokens", field="prompt")',
        'raise ValueError(f"tenant {request.tenant!r} may send {limit} tokens")',
        "A validator returns for what may pass and raises InvalidRequest for anything else.",
        reason="No request of the suite asked for as much as a tenant may not have; some do now.",
        now="hooks.passes_or_refuses",
    ),
    Mutant(
        "quotas-no-field",
        "quotas.Quotas",
        'raise InvalidRequest(f"tenant {request.tenant!r} may send {limit} tokens", field="prompt")',
        'raise InvalidRequest(f"tenant {request.tenant!r} may send {limit} tokens")',
        "An InvalidRequest names the part of the request to change.",
        reason="No request of the suite asked for as much as a tenant may not have; some do now.",
        now="hooks.a_refusal_names_a_field",
    ),
    Mutant(
        "quotas-finish-first",
        "quotas.Quotas",
        ("            self.under_way[request.tenant] -= 1\n"),
        (
            "            self.under_way[request.tenant] -= 1\n"
            "            if self.under_way[request.tenant] > 0:\n"
            "                raise RuntimeError('ended out of order')\n"
        ),
        "Requests overlap and end in any order.",
        first="hooks.hears_of_many_at_once",
    ),
)
