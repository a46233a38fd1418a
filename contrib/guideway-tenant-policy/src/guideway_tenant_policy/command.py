"""Check a tenant policy and show each tenant's limits.

``guideway tenant-policy [FILE]``.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _SubParsersAction
from pathlib import Path

from guideway_tenant_policy import VARIABLE, PolicyFile, policy_file

__all__ = ["add_tenant_policy"]


def add_tenant_policy(subparsers: _SubParsersAction[ArgumentParser]) -> None:
    """Add ``tenant-policy``."""
    parser = subparsers.add_parser("tenant-policy", description="Check a tenant policy and show each tenant's limits.")
    parser.add_argument("file", nargs="?", type=Path, help=f"default: the file that {VARIABLE} names")
    parser.set_defaults(run=_show)


def _show(args: Namespace) -> int:
    file = policy_file() if args.file is None else PolicyFile(args.file)
    print("\n".join(file.policy().described()))  # noqa: T201 - a command prints
    return 0
