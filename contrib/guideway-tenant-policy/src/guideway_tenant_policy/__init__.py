"""Limits for the requests of each tenant, read from the TOML file in the environment variable GUIDEWAY_TENANT_POLICY.

Without a valid policy, every request is refused.
"""

from __future__ import annotations

import os
from pathlib import Path

from guideway.api import InvalidConfiguration, InvalidRequest, Request, ValidationContext, hookimpl

from guideway_tenant_policy.policy import Limits, Policy, PolicyFile

__all__ = ["VARIABLE", "Limits", "Policy", "PolicyFile", "policy_file"]

VARIABLE = "GUIDEWAY_TENANT_POLICY"

_files: dict[str, PolicyFile] = {}
"""Files by path, because the variable may change while a process runs."""


@hookimpl
def guideway_validate_request(request: Request, context: ValidationContext) -> None:
    """Refuse a request beyond the tenant's limits."""
    try:
        policy = policy_file().policy()
    except InvalidConfiguration as error:
        raise InvalidRequest(
            f"there is no usable tenant policy, so every request is refused: {error}", field="tenant"
        ) from error
    policy.check(request, context)


def policy_file() -> PolicyFile:
    """Return the file that the environment names. Raises `InvalidConfiguration` if it names none."""
    path = os.environ.get(VARIABLE, "")
    if not path:
        raise InvalidConfiguration(f"the environment variable {VARIABLE} names no file", field=VARIABLE)
    return _files.setdefault(path, PolicyFile(Path(path)))
