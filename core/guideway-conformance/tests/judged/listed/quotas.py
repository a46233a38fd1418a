"""Mistakes in `judged.plugins.quotas`: hooks."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "quotas-value-error",
        "quotas.Quotas",
        'raise InvalidRequest(f"tenant {request.tenant!r} may send {limit} tokens", field="prompt")',
        'raise ValueError(f"tenant {request.tenant!r} may send {limit} tokens")',
        "A validator returns for what may pass and raises InvalidRequest for anything else.",
        reason=(
            "What a tenant may do is known to its operator alone, and no request of the suite is refused: "
            "see the limits of a verdict."
        ),
        survives=True,
    ),
    Mutant(
        "quotas-no-field",
        "quotas.Quotas",
        'raise InvalidRequest(f"tenant {request.tenant!r} may send {limit} tokens", field="prompt")',
        'raise InvalidRequest(f"tenant {request.tenant!r} may send {limit} tokens")',
        "An InvalidRequest names the part of the request to change.",
        reason=(
            "What a tenant may do is known to its operator alone, and no request of the suite is refused: "
            "see the limits of a verdict."
        ),
        survives=True,
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
