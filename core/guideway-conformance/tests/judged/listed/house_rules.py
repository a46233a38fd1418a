"""Mistakes in `judged.plugins.house_rules`: what a tenant may ask for, hooks."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "hr-last-good-rules",
        "house_rules.PLUGIN",
        (
            '            raise InvalidRequest(f"nobody is served: {VARIABLE} names no file of rules that can '
            'be read") from error\n'
        ),
        (
            "            if self._parsed is None:\n"
            '                raise InvalidRequest(f"nobody is served: {VARIABLE} names no file of rules that '
            'can be read") from error\n'
            "            default, tenants = self._parsed[1]  # it is being replaced: those that held a moment ago\n"
        ),
        (
            "contracts/hooks.md: A validator that cannot read the file that its environment variable names "
            "fails closed: it refuses every request with InvalidRequest, also where it could read that file "
            "hours before"
        ),
        first="hooks.what_cannot_be_read_refuses",
    ),
    Mutant(
        "hr-reverses-lists-in-place",
        "house_rules.PLUGIN",
        ("        elif isinstance(part, (list, tuple)):\n            stack.extend(reversed(part))\n"),
        (
            "        elif isinstance(part, list):\n"
            "            part.reverse()\n"
            "            stack.extend(part)\n"
            "        elif isinstance(part, tuple):\n"
            "            stack.extend(reversed(part))\n"
        ),
        (
            "contracts/hooks.md: A validator leaves the submission or request and its context as they are, "
            "whether it passes or refuses."
        ),
        first="hooks.a_validator_changes_nothing",
    ),
    Mutant(
        "hr-lone-surrogate",
        "house_rules.PLUGIN",
        'len(text.encode("utf-8", "surrogatepass"))',
        "len(text.encode())",
        "contracts/hooks.md: A validator returns for what may pass and raises InvalidRequest for anything else.",
        first="hooks.passes_or_refuses",
    ),
    Mutant(
        "hr-memo-of-prefix",
        "house_rules.PLUGIN",
        '        self._check_phrases(submission.prompt, rules, "prompt")\n',
        (
            '        clean = self.__dict__.setdefault("_clean", set())  # long system prompts come again and '
            "again\n"
            "        key = (submission.tenant, hash(str(submission.prompt)[:2000]))\n"
            "        if key not in clean:\n"
            '            self._check_phrases(submission.prompt, rules, "prompt")\n'
            "            clean.add(key)\n"
        ),
        (
            "contracts/hooks.md: A validator decides of each request as if it were the first that it is "
            "asked of, whatever it was asked of before and whichever others run"
        ),
        reason=(
            "No request that is refused had the beginning of one that passes; texts with the words of the "
            "plugin's own code now come after others that are the same but for one word."
        ),
        now="hooks.a_validator_decides_each_by_itself",
    ),
)
