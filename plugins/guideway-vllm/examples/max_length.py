"""Sends the same two requests to vLLM alone and to vLLM with guideway, and shows which keeps ``maxLength`` with
``pattern``.

vLLM uses the structured-output backend that its first request needs for all later requests
(https://github.com/vllm-project/vllm/issues/43920). The second request here is validated by the rules of a backend that
supports ``maxLength`` with ``pattern``, and then served by the first one's, which ignores it. guideway lets the same
backends serve each request separately.

``make demo-vllm`` runs it: two engines in turn, each in its own process, on the CPU. It exits with 1 if guideway does
not keep ``maxLength``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

PROMPT = "Give name and age as JSON. This is Peter Young. Age: 49."
LONGEST = 5
PROPERTIES = {"name": {"type": "string", "maxLength": 30}, "age": {"type": "integer", "maximum": 120}}
FIRST = {"type": "object", "properties": PROPERTIES, "required": ["name", "age"], "additionalProperties": False}
NAME = {"type": "string", "pattern": "^[A-Za-z ]+$", "maxLength": LONGEST}
SECOND = {**FIRST, "properties": {**PROPERTIES, "name": NAME}}

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}


def serve(guideway: bool) -> dict[str, Any]:
    """Return the outputs of an engine in this process for the two requests, one after the other."""
    import vllm
    from guideway_demo_model import DemoModel
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    llm = LLM(
        model=str(DemoModel().path()),
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=4,
        disable_log_stats=True,
        additional_config={"guideway": {}} if guideway else {},
    )
    outputs = []
    for schema in (FIRST, SECOND):
        params = SamplingParams(temperature=0, max_tokens=80, structured_outputs=StructuredOutputsParams(json=schema))
        outputs += llm.generate([PROMPT], [params], use_tqdm=False)
    told = [(output.kv_transfer_params or {}).get("guideway", {}) for output in outputs]
    return {
        "vllm": vllm.__version__,
        "texts": [output.outputs[0].text for output in outputs],
        "strategies": [said.get("strategy") for said in told],
    }


def serve_in_process(guideway: bool) -> dict[str, Any]:
    """Return the result of `serve` in a new process; without guideway no vLLM plugin is loaded there."""
    environment = os.environ | SETTINGS
    environment["VLLM_PLUGINS"] = "guideway" if guideway else "none"
    command = [sys.executable, __file__, "guideway" if guideway else "alone"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"vLLM {command[-1]} failed:\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def verdict(text: str) -> tuple[bool, str]:
    """Return whether a text keeps the second schema's ``maxLength``, and a description."""
    try:
        length = len(json.loads(text)["name"])
    except ValueError:
        return False, "the output is no JSON"
    kept = length <= LONGEST
    return kept, f"{length} characters: {'kept' if kept else 'lost'}"


def main() -> int:
    """Print the comparison as a table. Returns 0 if guideway kept ``maxLength``, else 1."""
    _say(f"second of two requests, name: {json.dumps(NAME)}\n")
    kept = False
    for guideway in (False, True):
        answer = serve_in_process(guideway)
        text = answer["texts"][1]
        kept, said = verdict(text)
        title = f"vLLM {answer['vllm']}" + (", guideway" if guideway else "")
        by = f", served by {answer['strategies'][1]}" if guideway else ""
        _say(f"{title:24}{text}\n{'':24}maxLength {LONGEST}: {said}{by}")
    return 0 if kept else 1


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1:]:
        _say(json.dumps(serve(sys.argv[1] == "guideway")))
    else:
        sys.exit(main())
