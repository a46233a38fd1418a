"""Plugins of an operator who also uses guideway: observers, and a connector that transfers keys and values."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from guideway.api import GenerationResult, Request, hookimpl
from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector

from tests.support import distributions

NOTES = "GUIDEWAY_TEST_NOTES"
"""Environment variable with the folder for notes, one JSON object per line."""


def install(folder: Path) -> None:
    """Install the distribution in `folder`, which must be on the path."""
    distributions.install(folder, "operating", {"hooks.operating": __name__})


def note(**heard: Any) -> None:
    with (Path(os.environ[NOTES]) / "notes.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(heard) + "\n")


@hookimpl
def guideway_request_started(request: Request) -> None:
    note(started=request.request_id, tenant=request.tenant)
    if request.tenant == "raises":
        raise RuntimeError("an observer failed")


@hookimpl
def guideway_request_failed(request: Request, error: BaseException) -> None:
    note(failed=request.request_id, error=str(error))


@hookimpl
def guideway_request_finished(request: Request, result: GenerationResult) -> None:
    outputs = [
        {
            "text": output.text,
            "reason": str(output.finish_reason),
            "strategy": output.strategy,
            "num_tokens": len(output.token_ids),
        }
        for output in result.outputs
    ]
    note(finished=request.request_id, outputs=outputs, tenant=request.tenant)


class Connector(ExampleConnector):  # type: ignore[misc]
    """Notes the parameters of each request, and returns parameters for each that ends."""

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        note(brought=request.kv_transfer_params)
        return False, {"remote": 7}
