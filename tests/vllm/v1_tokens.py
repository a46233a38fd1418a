"""Print the tokens that the jobs of `test_v2_runner` have in vLLM's V1 model runner, as JSON.

python -m tests.vllm.v1_tokens FOLDER    # where the probes are installed
"""

from __future__ import annotations

import json
import sys

from guideway_demo_model import DemoModel

from tests.vllm import conftest
from tests.vllm.probes_in_vllm import GUIDEWAY
from tests.vllm.test_v2_runner import JOBS, generated


def main() -> None:
    assert not conftest.USES_V2
    sys.path.insert(0, sys.argv[1])
    from vllm import LLM

    llm = LLM(
        str(DemoModel().path()),
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=16,
        additional_config={"guideway": GUIDEWAY},
    )
    print(json.dumps(generated(llm, JOBS)))


if __name__ == "__main__":
    main()
