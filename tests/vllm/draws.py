"""Print how often each text is drawn in a separate vLLM, by request, as JSON; `draws` runs this module.

python -m tests.vllm.draws FOLDER V2 DRAFTS FIRST_SEED NATIVE    # probes in FOLDER; V2, NATIVE: 0, 1; DRAFTS: JSON

Kernels run in Triton's interpreter; in V1 with NATIVE, vLLM's CPU kernels run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NUM_DRAWS = 400
"""Draws per request."""
PROMPT = "<|user|>jkjkjkjkjk<|assistant|>kjjkjk"
"""The prompt shares n-grams with the outputs. The demo model finds both letters likely after either, so drafts are
often wrong, and accepting a wrong one would change the distribution."""
PATTERN = "[jk]{5}z"
REQUESTS: dict[str, dict[str, Any]] = {
    "constraint": {"regex": PATTERN, "temperature": 2.0},
    # with top_k alone vLLM 0.32's V1 runner fails in a step without drafts: it takes the maximum of an empty tensor
    "filters": {"regex": PATTERN, "temperature": 2.0, "top_k": 5, "top_p": 0.999},
    "modifier": {"regex": PATTERN, "modifiers": {"hello": {"letter": "j", "strength": 1}}, "temperature": 1.5},
    # it removes the likeliest letter
    "late modifier": {"regex": "[jkuy]{4}z", "modifiers": {"second": {"label": "drafts"}}, "temperature": 2.0},
    "own draw": {"regex": PATTERN, "modifiers": {"gumbel": {}}, "temperature": 2.0},
}


def draws(
    folder: Path, *, v2: bool, drafts: dict[str, Any] | None, first_seed: int, native: bool = False
) -> tuple[dict[str, Any], int]:
    """Return the counts of each request's texts, and the number of accepted drafts."""
    foreign = ("TRITON_", "PYTHONPATH", "VLLM_USE_V2")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    given = [str(int(v2)), json.dumps(drafts), str(first_seed), str(int(native))]
    done = subprocess.run(
        [sys.executable, "-m", "tests.vllm.draws", folder, *given],
        env={**environment, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(next(line for line in done.stdout.splitlines()[::-1] if line.startswith("[{"))))


def main() -> None:
    folder, v2, drafts, first_seed = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
    import tempfile

    from tests.support.triton_interpreter import use

    with tempfile.TemporaryDirectory() as kernels:
        if sys.argv[5] == "0":
            use(Path(kernels))
        # a kernel that leaves memory uninitialised then always leaves NaN there, not sometimes a plausible number
        else:
            import torch

            torch.use_deterministic_algorithms(True, warn_only=True)
        sys.path.insert(0, str(folder))
        os.environ |= {"VLLM_USE_V2_MODEL_RUNNER": v2, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        from guideway_demo_model import DemoModel
        from vllm import LLM

        from tests.vllm.probes_in_vllm import GUIDEWAY, _tokenizer, params

        llm = LLM(
            str(DemoModel().path()),
            dtype="float32",
            enforce_eager=True,
            max_model_len=128,
            max_num_seqs=64,
            disable_log_stats=False,
            speculative_config=drafts,
            # late grammar hosts, as under load, would accept no drafts
            additional_config={"guideway": {**GUIDEWAY, "grammar_host": "inline"}},
        )
        ids = _tokenizer()(PROMPT, add_special_tokens=False).input_ids
        counts = {}
        for name, given in REQUESTS.items():
            own = dict(given)
            modifiers = own.pop("modifiers", None)
            each = [params(modifiers, seed=first_seed + i, max_tokens=12, **own) for i in range(NUM_DRAWS)]
            outputs = llm.generate([{"prompt_token_ids": ids}] * NUM_DRAWS, each, use_tqdm=False)
            assert all(output.outputs[0].finish_reason in ("stop", "length") for output in outputs)
            counts[name] = Counter(output.outputs[0].text for output in outputs)
        taken = [metric.value for metric in llm.get_metrics() if metric.name.endswith("num_accepted_tokens")]
        print(json.dumps([counts, sum(taken)]))


if __name__ == "__main__":
    main()
