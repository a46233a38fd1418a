"""Start-up of vLLM with guideway: refused with a reason, and unchanged if guideway is not configured."""

from __future__ import annotations

import copy
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from guideway.api import (
    DeviceBackend,
    GuidewayError,
    InvalidConfiguration,
    PluginConflict,
    PluginLoadError,
    PluginNotFound,
    PluginUnavailable,
    WorkerMixin,
    hookimpl,
)
from guideway.devices.numpy.device import NumpyDevice

from tests.support.distributions import install
from tests.vllm import other_workers
from tests.vllm import probes_in_vllm as probes

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yy"]}},
    "required": ["a"],
    "additionalProperties": False,
}
PROMPTS = ["Anna Berg is 34 years old.", "Hello", "Once upon a time"]


class Absent(NumpyDevice):
    """A device that is not available on this machine."""

    contract = "1.0"
    name = "absent"

    @classmethod
    def available(cls) -> str | None:
        return "there is no such chip; choose device 'cpu'"


class Mixin(WorkerMixin):
    """Does nothing."""

    contract = "1.0"
    name = "idle"


@hookimpl
def guideway_device_backend(name: str) -> type[DeviceBackend]:
    return Absent


@hookimpl
def guideway_worker_mixin(name: str) -> type[WorkerMixin]:
    return Mixin


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("installed")
    install(folder, "mine", {"device.absent": __name__, "worker.idle": __name__, "grammar.missing": "no_such_module"})
    install(folder, "theirs", {"worker.idle": __name__})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield


@pytest.fixture(scope="module")
def configured(demo_model: str) -> Callable[..., Any]:
    """Return a ``VllmConfig`` with guideway in it, as vLLM builds it from its arguments."""
    from vllm import EngineArgs

    plain = EngineArgs(demo_model, dtype="float32", enforce_eager=True, max_model_len=512).create_engine_config()

    def config(guideway: dict[str, Any], extension: str = "") -> Any:
        changed = copy.copy(plain)
        changed.additional_config = {"guideway": guideway}
        changed.parallel_config = copy.copy(plain.parallel_config)
        changed.parallel_config.worker_extension_cls = extension
        return changed

    return config


REFUSED: list[tuple[dict[str, Any], type[GuidewayError], str]] = [
    ({"gramar": ["xgrammar"]}, InvalidConfiguration, "gramar.*did you mean 'grammar'"),
    ({"grammar": ["xgrammar"], "modes": {}}, InvalidConfiguration, "modes.*did you mean 'modifiers'"),
    ({"option": {}}, InvalidConfiguration, "did you mean 'options'"),
    ({"grammar": ["xgrammr"]}, PluginNotFound, "did you mean 'xgrammar'"),
    ({"modifiers": ["hallo"]}, PluginNotFound, "did you mean 'hello'"),
    ({"grammar": ["elsewhere/xgrammar"]}, PluginNotFound, "elsewhere"),
    ({"grammar": ["xgrammar", "xgrammar"]}, InvalidConfiguration, "xgrammar.* twice"),
    ({"grammar": ["missing"]}, PluginLoadError, "'missing'.*mine 1.0.*no_such_module"),
    ({"grammar": ["xgrammar"], "options": {"grammar.lmfe": {}}}, InvalidConfiguration, "grammar.lmfe.*does not use"),
    ({"options": {"grammar.xgrammar": {"thread": 1}}, "grammar": ["xgrammar"]}, InvalidConfiguration, "'thread'"),
    ({"grammar": ["xgrammar"], "plugins": {"deny": ["guideway-xgrammar/*"]}}, PluginUnavailable, "deny"),
    ({"grammar": ["xgrammar"], "plugins": {"enable": ["no-such-hook"]}}, PluginNotFound, "no-such-hook"),
    ({"grammar": ["xgrammar"], "plugins": {"require": "certified"}}, PluginUnavailable, "grammar.xgrammar --record"),
    ({"worker_mixins": ["idle"]}, InvalidConfiguration, "--worker-extension-cls"),
]


@pytest.mark.parametrize(("guideway", "kind", "said"), REFUSED, ids=[json.dumps(given) for given, *_ in REFUSED])
def test_a_wrong_configuration_is_refused_by_the_front_end(
    configured: Callable[..., Any], guideway: dict[str, Any], kind: type[GuidewayError], said: str
) -> None:
    """The error is raised before anything is loaded, because vLLM first builds the front end's `InputProcessor`."""
    from guideway_vllm import register
    from vllm.v1.engine.input_processor import InputProcessor

    register()
    with pytest.raises(kind, match=said):
        InputProcessor(configured(guideway))


def test_one_line_is_logged_at_the_start_and_certification_is_not_mentioned(
    configured: Callable[..., Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vllm
    from guideway_vllm.frontend import FrontEnd

    config = configured({"grammar": ["xgrammar", "llguidance"], "modifiers": ["hello"]})
    # vLLM shows only its own logger's messages of level INFO
    monkeypatch.setattr(logging.getLogger("vllm"), "handlers", [caplog.handler])
    with caplog.at_level("INFO", logger="vllm"):
        front_end = FrontEnd.of(config)
    assert front_end is not None
    front_end.close()
    (record,) = caplog.records
    assert (record.levelname, record.name) == ("INFO", "vllm.guideway")
    assert re.fullmatch(
        rf"guideway \S+ in vLLM {re.escape(vllm.__version__)}: "
        r"strategies guideway-llguidance/grammar\.llguidance \S+, guideway-xgrammar/grammar\.xgrammar \S+; "
        r"modifiers guideway-hello/modifier\.hello \S+; worker mixins none; hooks none; "
        r"device guideway-cpu/device\.cpu \S+; ledger in kv_transfer_params\.guideway; "
        r"grammar_host=process; fingerprint [0-9a-f]{64}",
        record.message,
    )


def test_without_guideway_hosts_strategies_run_in_vllm_unless_hosts_were_asked_for(
    configured: Callable[..., Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from guideway_vllm import register
    from guideway_vllm.frontend import FrontEnd

    monkeypatch.setitem(sys.modules, "guideway_hosts", None)  # as if it were not installed
    register()
    monkeypatch.setattr(logging.getLogger("vllm"), "handlers", [caplog.handler])
    with caplog.at_level("INFO", logger="vllm"):
        front_end = FrontEnd.of(configured({"grammar": ["llguidance"]}))
    assert front_end is not None
    front_end.close()
    assert "; grammar_host=inline, because guideway-hosts is not installed: pip install " in caplog.messages[-1]
    with pytest.raises(InvalidConfiguration, match="grammar_host is 'process', but guideway-hosts is not installed"):
        FrontEnd.of(configured({"grammar": ["llguidance"], "grammar_host": "process"}))


def test_what_only_a_worker_can_know_is_refused_there(configured: Callable[..., Any]) -> None:
    from guideway_vllm.worker import attach

    def worker() -> Any:
        return SimpleNamespace(model_runner=runner_with(v2=configured({}).use_v2_model_runner), device="cpu")

    with pytest.raises(PluginUnavailable, match="there is no such chip; choose device 'cpu'"):
        attach(worker(), configured({"device_backend": "absent"}))
    extension = "guideway_vllm.worker.WorkerExtension"
    with pytest.raises(PluginConflict, match=r"mine.*theirs"):
        attach(worker(), configured({"worker_mixins": ["idle"]}, extension))


@pytest.mark.parametrize("in_vain", ["watermark", "logits processors"])
def test_what_would_act_in_vain_beside_a_late_modifier_is_named(
    configured: Callable[..., Any], tmp_path: Path, in_vain: str
) -> None:
    from guideway_vllm.frontend import FrontEnd
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError

    def request(modifier: str, **options: Any) -> Any:
        return SimpleNamespace(
            request_id="r",
            prompt_token_ids=[5],
            prompt_embeds=None,
            sampling_params=SamplingParams(max_tokens=4, extra_args={"guideway.modifiers": {modifier: options}}),
            priority=0,
            resumable=False,
        )

    with probes.installed(tmp_path):
        config = configured(probes.GUIDEWAY)
        if in_vain == "watermark":
            config.watermark_config = SimpleNamespace()
        else:
            config.model_config = copy.copy(config.model_config)
            config.model_config.logits_processors = ["some.Processor"]
        front_end = FrontEnd.of(config)
        assert front_end is not None
        try:
            with pytest.raises(VLLMValidationError, match=f"'gumbel'.*the {in_vain} of this server would act in vain"):
                front_end.admit(request("gumbel"))
            front_end.admit(request("hello", letter="e"))
        finally:
            front_end.close()


def runner_with(*, v2: bool) -> Any:
    """Return a stub of a model runner with only the attributes that the guest needs."""
    from guideway_vllm.runners import V1Seams, V2Seams

    runner = SimpleNamespace()
    for name, parameters in (V2Seams if v2 else V1Seams).needed.items():
        call = eval(f"lambda {', '.join(parameters)}: None")
        setattr(runner, name, call if parameters else None)
    return runner


@pytest.mark.parametrize("v2", [False, True])
def test_each_missing_seam_of_a_model_runner_is_named(
    configured: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, v2: bool
) -> None:
    from guideway_vllm.runners import V1Seams, V2Seams
    from guideway_vllm.worker import attach

    # a process that has had an engine caches the variable that chooses the runner
    monkeypatch.setattr("vllm.config.VllmConfig.use_v2_model_runner", v2)
    for name, parameters in (V2Seams if v2 else V1Seams).needed.items():
        without = runner_with(v2=v2)
        delattr(without, name)
        changed = runner_with(v2=v2)
        setattr(changed, name, lambda: None)
        for runner in (without, changed) if parameters else (without,):
            before = dict(vars(runner))
            said = re.escape(f"SimpleNamespace has no {name}") + rf"\({', '.join(parameters)}\)" * bool(parameters)
            with pytest.raises(PluginUnavailable, match=said):
                attach(SimpleNamespace(model_runner=runner, device="cpu"), configured({}))
            assert vars(runner) == before


@pytest.mark.parametrize("v2", [False, True])
def test_what_lies_between_forward_pass_and_draw_is_known(monkeypatch: pytest.MonkeyPatch, v2: bool) -> None:
    """Another version of vLLM may have messages with other fields, or pass more arguments to a replaced method. Without
    this check the first request would fail in the worker."""
    from guideway_vllm.runners import V1Seams, V2Seams
    from guideway_vllm.wrapping import find

    seams, runner = V2Seams if v2 else V1Seams, runner_with(v2=v2)
    assert seams.missing(runner) == []
    for path, names in seams.fields.items():
        for name in names:
            with monkeypatch.context() as patch:
                patch.delitem(find(path).__annotations__, name)
                assert seams.missing(runner) == [f"{path}.{name}"]
    for path, names in seams.replaced.items():
        holder, _, method = path.rpartition(".")
        with monkeypatch.context() as patch:
            patch.setattr(find(holder), method, eval(f"lambda self, {', '.join(names)}, another: None"))
            assert seams.missing(runner) == [f"{path}({', '.join(names)})"]
            patch.delattr(find(holder), method)
            assert seams.missing(runner) == [f"{path}({', '.join(names)})"]


def test_processes_of_a_front_end_take_its_vocabulary_over(
    configured: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import vllm
    from guideway_vllm.frontend import FrontEnd
    from guideway_vllm.handover import load_shared_vocabulary

    monkeypatch.setattr(vllm.envs, "VLLM_ENABLE_V1_MULTIPROCESSING", True)
    config = configured({"grammar": ["llguidance"]})
    front_end = FrontEnd.of(config)
    assert front_end is not None
    assert load_shared_vocabulary(config) is None, "it is here already"
    vocabulary = front_end._runtime.context.vocabulary

    def read_vocabulary(instance_id: str) -> str:
        """Return the output of a new process that reads the shared vocabulary."""
        ended = program(
            "from types import SimpleNamespace as Config\n"
            "from guideway_vllm.handover import shared_vocabulary_size, load_shared_vocabulary\n"
            f"config = Config(instance_id={instance_id!r})\n"
            "found = load_shared_vocabulary(config)\nprint(found and found.fingerprint, shared_vocabulary_size(config))"
        )
        return ended.stdout.strip() or ended.stderr

    assert read_vocabulary(config.instance_id) == f"{vocabulary.fingerprint} {len(vocabulary)}"
    assert read_vocabulary("another") == "None None"
    front_end.close()
    assert read_vocabulary(config.instance_id) == "None None"


def test_each_missing_seam_is_named_and_nothing_is_changed_then(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm
    from guideway_vllm import seams, wrapping

    assert seams.missing_seams() == []
    for path, parameters in seams.NEEDED.items():
        cls, method, function = wrapping.look_up(path)
        if method != "__init__":  # every class has `__init__`
            with monkeypatch.context() as patch:
                for base in cls.__mro__:
                    if method in vars(base):
                        patch.delattr(base, method)
                with pytest.raises(PluginUnavailable) as caught:
                    seams.install()
                assert f"vLLM {vllm.__version__}" in str(caught.value)
                assert f"it has no {path}" in str(caught.value)
                assert not hasattr(cls, method)
        if parameters:
            with monkeypatch.context() as patch:
                patch.setattr(cls, method, lambda: None)
                with pytest.raises(PluginUnavailable, match=f"takes no {', '.join(parameters)}"):
                    seams.install()
        assert wrapping.look_up(path)[2] is function


def test_each_seam_of_the_server_that_is_missing_is_named_at_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import vllm
    from guideway_vllm import over_http, wrapping

    monkeypatch.setattr(logging.getLogger("vllm"), "handlers", [caplog.handler])
    over_http.change_server(True)
    assert caplog.messages == []
    for path, (around, parameters, lost) in over_http.IN_SERVER.items():
        holder, name, _ = wrapping.look_up(path)
        takes_nothing = [(lambda: None, f"takes no {', '.join(parameters)}")] if parameters else []
        for instead, said in [(None, f"it has no {path}"), *takes_nothing]:
            caplog.clear()
            with monkeypatch.context() as patch:
                if instead is None:
                    for each in getattr(holder, "__mro__", (holder,)):
                        patch.delattr(each, name, raising=False)
                else:
                    patch.setattr(holder, name, instead)
                over_http.change_server(False)
                assert getattr(holder, name, None) is instead
                (message,) = caplog.messages
                assert lost in message and said in message and vllm.__version__ in message
                if around is over_http._around_to_sampling_params:
                    with pytest.raises(InvalidConfiguration, match="strict_refuses is on") as refused:
                        over_http.change_server(True)
                    assert path in str(refused.value)


def program(source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", source],
        env=os.environ | environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_vllm_does_not_start_without_a_seam() -> None:
    """Simulates another version of vLLM, which lacks a method when vLLM loads its plugins."""
    ended = program(
        "from vllm.v1.engine.input_processor import InputProcessor\n"
        "InputProcessor.take_inputs = InputProcessor.process_inputs\n"
        "del InputProcessor.process_inputs\n"
        "from vllm.plugins import load_general_plugins\n"
        "load_general_plugins()\n"
    )
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert "PluginUnavailable: guideway-vllm cannot run in vLLM 0." in last
    assert "it has no vllm.v1.engine.input_processor:InputProcessor.process_inputs" in last
    assert "VLLM_PLUGINS" in last


@pytest.mark.slow
def test_workers_in_processes_of_their_own_are_compared_with_their_core(demo_model: str, tmp_path: Path) -> None:
    """A spawned engine core, as in a server, loads plugins during its construction."""
    other_workers.install(tmp_path)
    ended = program(
        "from vllm import LLM\n"
        f"LLM({demo_model!r}, dtype='float32', enforce_eager=True, max_model_len=64, max_num_seqs=2,\n"
        "    disable_log_stats=True, additional_config={'guideway': {'grammar': ['llguidance']}})\n",
        VLLM_ENABLE_V1_MULTIPROCESSING="1",
        PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    )
    assert ended.returncode == 1
    assert "engine core and workers do not run the same plugins: rank 0 does not load guideway" in ended.stderr


def outputs(llm: Any) -> list[tuple[list[int], str | None, Any]]:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    params = [
        SamplingParams(temperature=0, max_tokens=40, structured_outputs=StructuredOutputsParams(json=SCHEMA)),
        SamplingParams(temperature=0.9, seed=7, max_tokens=12),
        SamplingParams(temperature=0, max_tokens=12, structured_outputs=StructuredOutputsParams(regex="[a-z]{3,9}")),
    ]
    found = llm.generate(PROMPTS, params)
    return [(list(o.outputs[0].token_ids), o.outputs[0].finish_reason, o.kv_transfer_params) for o in found]


WITHOUT = """
import json, sys
from vllm import LLM
from tests.vllm.test_startup import outputs
llm = LLM({model!r}, dtype="float32", enforce_eager=True, max_model_len=512, max_num_seqs=16, disable_log_stats=True,
          additional_config={additional!r})
print("FOUND", json.dumps([outputs(llm), sorted(name for name in sys.modules if name.startswith("guideway_vllm"))]))
"""


def test_where_nobody_asks_for_guideway_everything_is_vllms_own(start: Callable[..., Any], demo_model: str) -> None:
    """The plugin is loaded without the key `guideway`, and compared with ``VLLM_PLUGINS=none``: classes, and tokens."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.structured_output import StructuredOutputManager

    ended = program(WITHOUT.format(model=demo_model, additional={}), VLLM_PLUGINS="none")
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("FOUND")] or [ended.stderr]
    without, modules = json.loads(line.removeprefix("FOUND"))
    assert modules == []

    llm = start(None)
    core = llm.llm_engine.engine_core.engine_core
    assert type(core.structured_output_manager) is StructuredOutputManager
    assert core.scheduler.guest is None
    assert isinstance(core.scheduler, AsyncScheduler | Scheduler)
    assert llm.llm_engine.input_processor.guideway is None
    worker = core.model_executor.driver_worker.worker
    assert not hasattr(worker, "guideway_guest")
    patched = {"sample", "sample_tokens", "execute_model", "load_model"} & vars(worker.model_runner).keys()
    assert not patched
    assert "shutdown" not in vars(worker)
    found = outputs(llm)
    assert core.structured_output_manager.backend is not None
    assert [list(row) for row in found] == without
