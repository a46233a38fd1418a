"""What each tenant may ask for, read from the TOML file that the environment variable GUIDEWAY_TENANT_POLICY names.

Without a policy that can be read and understood, every request is refused.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace, _SubParsersAction
from pathlib import Path

from guideway.api import InvalidConfiguration, InvalidRequest, Request, ValidationContext, hookimpl

from guideway_tenant_policy.policy import Limits, Policy, PolicyFile

__all__ = ["VARIABLE", "Limits", "Policy", "PolicyFile"]

VARIABLE = "GUIDEWAY_TENANT_POLICY"

_files: dict[str, PolicyFile] = {}
"""By path: the variable may change while a process runs."""


@hookimpl
def guideway_validate_request(request: Request, context: ValidationContext) -> None:
    """Refuse what the tenant's limits do not allow."""
    try:
        policy = _file().policy()
    except InvalidConfiguration as error:
        raise InvalidRequest(
            f"there is no usable tenant policy, so every request is refused: {error}", field="tenant"
        ) from error
    policy.check(request, context)


@hookimpl
def guideway_commands(app: _SubParsersAction[ArgumentParser]) -> None:
    """``guideway --enable-plugin tenant_policy tenant-policy [FILE]``."""
    parser = app.add_parser("tenant-policy", help="check a tenant policy and show each tenant's limits")
    parser.add_argument("file", nargs="?", type=Path, help=f"default: the file that {VARIABLE} names")
    parser.set_defaults(run=_show)


def _show(args: Namespace) -> int:
    file = _file() if args.file is None else PolicyFile(args.file)
    print("\n".join(file.policy().described()))  # noqa: T201 - printing is what a command is for
    return 0


def _file() -> PolicyFile:
    path = os.environ.get(VARIABLE, "")
    if not path:
        raise InvalidConfiguration(f"the environment variable {VARIABLE} names no file", field=VARIABLE)
    return _files.setdefault(path, PolicyFile(Path(path)))
