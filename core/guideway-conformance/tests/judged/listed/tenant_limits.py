"""Mistakes in `judged.plugins.tenant_limits`: limits by tenant, hooks."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "quota-stale-policy",
        "tenant_limits.PLUGIN",
        ('    except (KeyError, OSError, ValueError) as error:\n        raise InvalidRequest(f"nobody'),
        (
            "    except (KeyError, OSError, ValueError) as error:\n"
            "        if _PARSED is not None:\n"
            "            return _PARSED[1]  # the last one that could be read\n"
            '        raise InvalidRequest(f"nobody'
        ),
        (
            "contracts/hooks: 'A validator that cannot read the file that its environment variable "
            "names fails closed: it refuses every request with InvalidRequest, also where it could "
            "read that file hours before, when it was asked of another request.'"
        ),
        first="hooks.what_cannot_be_read_refuses",
    ),
    Mutant(
        "quota-priority-without-field",
        "tenant_limits.PLUGIN",
        'raise InvalidRequest(f"priority {priority} is more urgent than allowed", field="priority")',
        'raise InvalidRequest(f"priority {priority} is more urgent than allowed")',
        (
            "contracts/hooks: 'An InvalidRequest names the part of the request to change, which is not "
            "all of it unless every request is refused, and says something.'"
        ),
        first="hooks.a_refusal_names_a_field",
    ),
    Mutant(
        "quota-pops-from-the-policy",
        "tenant_limits.PLUGIN",
        '        merged = {**policy.get("default", {}), **policy.get("tenants", {}).get(tenant, {})}\n',
        '        merged = policy.get("tenants", {}).get(tenant) or policy.get("default", {})\n',
        (
            "contracts/hooks: 'A validator may be called from several threads at once, while observers "
            "hear of other requests, and decides as it does alone.'"
        ),
        reason=(
            "No request asked for a modifier alone and for little else, and none was the first that a "
            "process is asked of; each is now."
        ),
        now="hooks.a_validator_decides_each_by_itself",
    ),
    Mutant(
        "quota-counts-what-runs",
        "tenant_limits.PLUGIN",
        "    length = len(request.prompt_token_ids)\n",
        (
            "    length = len(request.prompt_token_ids)\n"
            "    running = sum(tenant == request.tenant for tenant in _RUNNING.values())\n"
            "    if running >= 8:\n"
            '        raise LimitExceeded(f"tenant {request.tenant!r} has {running} requests under '
            'way", field="tenant")\n'
        ),
        (
            "contracts/hooks: 'A validator may be called from several threads at once, while observers "
            "hear of other requests, and decides as it does alone.'"
        ),
        reason="Threads changed by the clock while requests started; now they change amid the lines of the plugin.",
        now="hooks.a_validator_serves_several_threads",
    ),
)
