"""Serve a model over HTTP: embeddings, scores or labels in the form of OpenAI's API.

``guideway serve``.
"""
# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import logging
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, _SubParsersAction
from contextlib import closing
from pathlib import PurePath

from guideway.command_line.quiet import quiet_libraries
from guideway.command_line.signals import interrupted_by_sigterm
from guideway.errors import InvalidConfiguration, printable

from guideway_engine.command_line import config
from guideway_engine.command_line.opening import loading, open_engine
from guideway_engine.config_sources import Configuration
from guideway_engine.settings import DECODE

__all__ = ["add_serve"]

USED = ("model", "workflow", "device", "dtype", "executor", "max_model_len", "plugins")
"""The fields and tables of the configuration that matter here."""

EXTRA = "guideway[serve]"


def add_serve(subparsers: _SubParsersAction[ArgumentParser]) -> None:
    """Add ``serve``."""
    parser = subparsers.add_parser(
        "serve",
        usage="guideway serve --model NAME [--host HOST] [--port PORT] [flags]",
        help="serve a model over HTTP",
        description="Serve an embedding model, a cross-encoder or a classifier over HTTP, in the form of OpenAI's API: "
        "/v1/embeddings, /v1/rerank, /v1/classify, /v1/models and /health. SIGTERM and Ctrl-C end it once what is "
        "under way is answered. It asks nobody who he is: where others can reach it, put a proxy before it. Exit "
        "status: 0 it was asked to stop; 1 it could not serve; 2 wrong usage.",
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
        from guideway_engine.server.running import listen, run
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(
            f"serving needs {error.name!r}, which is not installed: pip install '{EXTRA}'", field="serve"
        ) from error
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(message)s")
    with closing(listen(args.host, args.port)) as sock:
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
                make_app(engine, name),
                sock,
                args.grace,
                lambda url: print(printable(f"guideway: {about} at {url}/v1"), file=sys.stderr, flush=True),
            )
    print("guideway: stopped", file=sys.stderr)
    return 0


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) < 1 << 16):
        raise ArgumentTypeError(f"must be a number from 0 to 65535, not {text!r}")
    return int(text)


def _seconds(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) < 86400):
        raise ArgumentTypeError(f"must be a number of seconds, at least 1, not {text!r}")
    return int(text)
