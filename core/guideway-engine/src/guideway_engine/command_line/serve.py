"""Serve a model over HTTP: embeddings, scores or labels in the form of OpenAI's API.

``guideway serve``.
"""
# ruff: noqa: T201 - commands print

from __future__ import annotations

import logging
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, _SubParsersAction
from contextlib import closing
from dataclasses import fields
from pathlib import PurePath

from guideway.command_line.quiet import quiet_libraries
from guideway.command_line.signals import interrupted_by_sigterm
from guideway.errors import InvalidConfiguration, printable

from guideway_engine.command_line import config
from guideway_engine.command_line.opening import loading, open_engine
from guideway_engine.config_sources import API_KEY_VARIABLE, Configuration, WrongFlag
from guideway_engine.server.limits import Limits
from guideway_engine.settings import DECODE

__all__ = ["add_serve"]

USED = ("model", "workflow", "device", "dtype", "executor", "max_model_len", "plugins")
"""Fields and tables of the configuration that are used here."""

EXTRA = "guideway[serve]"


def add_serve(subparsers: _SubParsersAction[ArgumentParser]) -> None:
    """Add the command ``serve``."""
    parser = subparsers.add_parser(
        "serve",
        usage="guideway serve --model NAME [--host HOST] [--port PORT] [flags]",
        help="serve a model over HTTP",
        description="Serve an embedding model, a cross-encoder or a classifier over HTTP, in the form of OpenAI's API: "
        "/v1/embeddings, /v1/rerank, /v1/classify, /v1/models, /health and /metrics. SIGTERM and Ctrl-C stop it when "
        "all requests are answered. Exit status: 0 it was asked to stop; 1 it could not serve; 2 wrong usage.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="the address to serve at (default: %(default)s)")
    parser.add_argument(
        "--port", type=_port, default=8000, help="the port to serve at; 0: any free one (default: %(default)s)"
    )
    parser.add_argument(
        "--name", metavar="NAME", help="what clients call the model (default: the last part of --model)"
    )
    parser.add_argument(
        "--grace",
        metavar="SECONDS",
        type=_seconds,
        default=30,
        help="how long requests under way may take when the server is asked to stop (default: %(default)s)",
    )
    access = parser.add_argument_group("access")
    access.add_argument(
        "--api-key",
        metavar="KEY",
        action="append",
        default=[],
        help="a key that clients must send as Authorization: Bearer KEY, for all paths but /health (repeatable; "
        f"default: the one in {API_KEY_VARIABLE}, which other users of the machine cannot see)",
    )
    access.add_argument(
        "--allowed-hosts",
        metavar="NAME,...",
        type=lambda text: [name.strip() for name in text.split(",")],
        help="the names that a Host header may have; *: any (default: localhost and its addresses if --host is a "
        "loopback address, else any, with a warning)",
    )
    access.add_argument(
        "--trust-clients",
        action="store_true",
        help="let requests set their priority, and count those with one user as one tenant",
    )
    limits = parser.add_argument_group("limits")
    for limit in fields(Limits):
        limits.add_argument(
            f"--{limit.name.replace('_', '-')}",
            metavar="SECONDS" if limit.name.endswith("timeout") else "N",
            type=_seconds if limit.name.endswith("timeout") else _count,
            default=limit.default,
            help=f"{limit.metadata['about']} (default: %(default)s)",
        )
    config.add_flags(parser, only=USED)
    parser.set_defaults(run=_run)


def _run(args: Namespace) -> int:
    with quiet_libraries(), interrupted_by_sigterm():
        configuration = config.configuration(args, config.sources(args))
        if ("model",) not in configuration.settings:
            print(
                "guideway serve: error: no model is configured; give --model, GUIDEWAY_MODEL, or model in a "
                "configuration file (--config, GUIDEWAY_CONFIG)",
                file=sys.stderr,
            )
            return 2
        return _serve(args, configuration)


def _serve(args: Namespace, configuration: Configuration) -> int:
    try:
        from guideway_engine.server.app import make_app
        from guideway_engine.server.gate import ANY_HOST, check_api_key, check_host_name, default_hosts
        from guideway_engine.server.running import allow_connections, listen, run
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(
            f"serving needs {error.name!r}, which is not installed: pip install '{EXTRA}'", field="serve"
        ) from error
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        limits = Limits(**{limit.name: getattr(args, limit.name) for limit in fields(Limits)})
        keys = _keys(args.api_key)
        for key in keys:
            check_api_key(key)
        for name in args.allowed_hosts or ():
            check_host_name(name)
        if args.name == "":
            raise InvalidConfiguration("--name must not be empty: requests name the model by it", field="name")
    except InvalidConfiguration as error:
        raise WrongFlag(str(error), field=error.field) from error
    with closing(listen(args.host, args.port)) as sock:
        allow_connections(limits)
        hosts = args.allowed_hosts or default_hosts(args.host, sock.getsockname()[0])
        if hosts is None:
            print(
                "guideway serve: warning: any Host header is accepted, so a web page that somebody in this network "
                "opens can send requests (DNS rebinding); name this server's hosts with --allowed-hosts",
                file=sys.stderr,
            )
        with loading():
            engine = open_engine(configuration)
        with engine:
            if engine.workflow == DECODE:
                raise InvalidConfiguration(
                    "a server of guideway's own embeds, ranks and classifies, and this model generates text; serve it "
                    "with vLLM and guideway-vllm, or choose a workflow with --workflow",
                    field="workflow",
                )
            name = args.name or PurePath(engine.config.model).name
            about = f"serving {name} (workflow {engine.workflow})"
            run(
                make_app(
                    engine, name, limits, hosts=hosts or (ANY_HOST,), keys=keys, trusts_clients=args.trust_clients
                ),
                sock,
                limits,
                args.grace,
                lambda url: print(printable(f"guideway: {about} at {url}/v1"), file=sys.stderr, flush=True),
            )
    print("guideway: stopped", file=sys.stderr)
    return 0


def _keys(given: list[str]) -> list[str]:
    if given or API_KEY_VARIABLE not in os.environ:
        return given
    return [os.environ[API_KEY_VARIABLE]]


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) < 1 << 16):
        raise ArgumentTypeError(f"must be a number from 0 to 65535, not {text!r}")
    return int(text)


def _seconds(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) < 86400):
        raise ArgumentTypeError(f"must be a number of seconds, at least 1, not {text!r}")
    return int(text)


def _count(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) < 1 << 40):
        raise ArgumentTypeError(f"must be a whole number, at least 1, not {text!r}")
    return int(text)
