"""Print the tokens of `test_v2_runner`'s jobs in another vLLM, as JSON: in other processes, or with drafts.

python -m tests.vllm.another FOLDER [OPTIONS]    # the probes are installed in FOLDER; OPTIONS of vLLM, as JSON

The environment chooses the model runner. `tokens` runs this module.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

ROOT = Path(__file__).parents[2]


def tokens(folder: Path, *, v2: bool, one_process: bool = True, **options: Any) -> Any:
    """Return the tokens of each job in a vLLM with these options."""
    foreign = ("TRITON_", "PYTHONPATH", "VLLM_USE_V2")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.vllm.another", str(folder), json.dumps(options)],
        env={
            **environment,
            "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
            "VLLM_USE_V2_MODEL_RUNNER": str(int(v2)),
            "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(not one_process)),
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(next(line for line in done.stdout.splitlines()[::-1] if line.startswith("[[")))


def main() -> None:
    folder, options = sys.argv[1], json.loads(sys.argv[2])
    several = os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"]
    from tests.support.triton_interpreter import use
    from tests.vllm import conftest

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = several  # tests run in one process
    if options.get("async_scheduling") and not conftest.USES_V2:  # repairs the reason for which it is off on a CPU
        use(Path(mkdtemp()))
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    from guideway_demo_model import DemoModel
    from vllm import LLM

    from tests.vllm.probes_in_vllm import GUIDEWAY
    from tests.vllm.test_v2_runner import JOBS, generate

    sys.path.insert(0, folder)
    defaults = {
        "model": str(DemoModel().path()),
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 512,
        "max_num_seqs": 16,
    }
    llm = LLM(**(defaults | options), additional_config={"guideway": GUIDEWAY})
    serving = "vllm.entrypoints.openai.chat_completion.serving"
    assert serving not in sys.modules, "an engine without a server imports no modules of a server, which takes a second"
    config = llm.llm_engine.vllm_config
    assert config.use_v2_model_runner == conftest.USES_V2
    assert options.get("async_scheduling") in (None, config.scheduler_config.async_scheduling)
    try:
        print(json.dumps(generate(llm, JOBS)))
    finally:  # the engine is not collected by itself: dill, which the jobs import, keeps frames alive
        llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
