"""Executors: calls reach workers in order, results and errors are returned, and workers may die at any moment."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from engine_support.executor_workers import Clinging, Closing, Stubborn, Worker, only_once, refused, stopping
from guideway.api import Executor, GuidewayError, InvalidConfiguration, PluginError, WorkerLost
from guideway.errors import RemoteError
from guideway.plugins import Plugins
from guideway_engine.executors.local.executor import LocalExecutor
from guideway_engine.executors.process import group as process_group
from guideway_engine.executors.process.blocks import BlockReader, BlockWriter, anonymous_file
from guideway_engine.executors.process.executor import ProcessExecutor

from tests.support.stages import everyday, one_in

HERE = Path(__file__).parent


@pytest.fixture(scope="module", params=["local", "process"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    made = Plugins().load("executor", request.param)(Worker, {})
    yield made
    made.close()


@pytest.fixture(scope="module")
def two() -> Iterator[ProcessExecutor]:
    """Yield an executor with two workers, for tests that kill neither."""
    made = ProcessExecutor(Worker, {"num_workers": 2})
    yield made
    made.close()


@pytest.fixture
def process() -> Iterator[ProcessExecutor]:
    """Yield an executor with one worker for one test."""
    made = ProcessExecutor(Worker, {})
    yield made
    made.close()


def num_open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def pid_of(executor: Executor) -> int:
    return int(executor.submit("identity").result()[2])


def test_calls_run_in_the_order_of_their_submission(executor: Executor) -> None:
    calls = []
    for i in range(300):
        executor.submit("keep", i)
        calls.append(executor.submit("kept_value"))
    # results can be read in any order
    assert [call.result() for call in reversed(calls)] == list(reversed(range(300)))
    assert calls[7].result() == 7, "a call can be asked again"


@pytest.mark.parametrize("size", [0, 1, 1000, 100_000, 3_000_000])
def test_arrays_of_any_size_come_through(executor: Executor, size: int) -> None:
    array = np.arange(size, dtype=np.int32)
    sent, text, empty = executor.submit("echo", array[::-1], "text", array[:0]).result()
    assert (sent == array[::-1]).all()
    assert (text, empty.shape, empty.dtype) == ("text", (0,), np.int32)


def test_several_large_calls_may_be_under_way(executor: Executor) -> None:
    arrays = [np.full((i + 1, 50_000), i, dtype=np.int64) for i in range(8)]
    calls = [executor.submit("echo", array) for array in arrays]
    for array, call in zip(arrays, calls, strict=True):
        assert (call.result()[0] == array).all()


def test_what_arrives_in_a_process_is_its_own() -> None:
    executor = ProcessExecutor(Worker, {})
    array = np.zeros(5000)
    changed = executor.submit("add_one", array).result()
    changed += 1  # the result is a writable copy too
    assert (changed == 2).all()
    assert (array == 0).all()
    executor.submit("keep", array).result()
    array[:] = 7
    executor.submit("echo", array).result()
    assert (executor.submit("kept_value").result() == 0).all(), "what a worker keeps does not change behind its back"
    executor.close()


def test_an_exception_is_raised_by_result_and_the_worker_goes_on(executor: Executor) -> None:
    call = executor.submit("fail", LookupError("not here"))
    after = executor.submit("echo", 1)
    with pytest.raises(LookupError) as raised:
        call.result()
    assert str(raised.value) == "not here"
    assert after.result() == (1,)


def test_fields_and_cause_of_an_error_survive(executor: Executor) -> None:
    with pytest.raises(PluginError) as raised:
        executor.submit("fail_from_cause").result()
    assert str(raised.value) == "it broke"
    assert raised.value.plugin == "worker.test"
    assert "ValueError" in repr(raised.value.__cause__)
    assert "missing" in str(raised.value.__cause__)


def test_an_unknown_method_is_an_error_of_the_call(executor: Executor) -> None:
    with pytest.raises(AttributeError, match="no_such_method"):
        executor.submit("no_such_method").result()


def test_the_traceback_of_a_strangers_error_comes_along(two: ProcessExecutor) -> None:
    with pytest.raises(ValueError, match="boom") as raised:
        two.submit("fail", ValueError("boom")).result()
    assert any("executor_workers.py" in note for note in raised.value.__notes__)


def test_an_error_that_does_not_pickle_comes_as_what_it_said(two: ProcessExecutor) -> None:
    with pytest.raises(RemoteError) as raised:
        two.submit("fail_with_the_unpicklable").result()
    assert str(raised.value) == "Stubborn: cannot travel"
    assert raised.value.type_name == Stubborn.__name__


def test_a_result_that_does_not_pickle_is_an_error(two: ProcessExecutor) -> None:
    with pytest.raises(GuidewayError, match="a function cannot be sent to another process"):
        two.submit("return_the_unpicklable").result()
    assert two.submit("echo", 1).result() == (1,)


def test_an_argument_that_does_not_pickle_is_refused_at_once(two: ProcessExecutor) -> None:
    with pytest.raises(Exception, match="lambda"):
        two.submit("echo", lambda: None)
    assert two.submit("echo", 1).result() == (1,)


def test_an_argument_that_only_the_parent_knows_is_an_error(
    two: ProcessExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = ModuleType("only_here")
    here.Thing = type("Thing", (), {"__module__": "only_here"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "only_here", here)
    call = two.submit("echo", here.Thing())
    with pytest.raises(GuidewayError, match="the arguments cannot be unpickled in the worker process: ModuleNotFound"):
        call.result()
    assert two.submit("echo", 1).result() == (1,)


def test_system_exit_ends_neither_worker_nor_parent(two: ProcessExecutor) -> None:
    with pytest.raises(RemoteError, match="SystemExit: 7"):
        two.submit("system_exit").result()
    assert two.submit("echo", 1).result() == (1,)


def test_local_lets_a_wish_to_stop_pass_at_once() -> None:
    executor = LocalExecutor(Worker, {})
    with pytest.raises(KeyboardInterrupt):
        executor.submit("fail", KeyboardInterrupt())


def test_every_worker_has_its_rank(two: ProcessExecutor) -> None:
    ranks = [(rank, size) for rank, size, _ in two.submit("identity").results()]
    assert ranks == [(0, 2), (1, 2)]
    assert two.submit("environment", "RANK").results() == ["0", "1"]
    assert two.submit("environment", "WORLD_SIZE").results() == ["2", "2"]
    assert len(set(two.submit("environment", "MASTER_PORT").results())) == 1
    assert two.submit("identity").result()[0] == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_what_any_worker_raises_is_raised(two: ProcessExecutor, rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} failed"):
        two.submit("fail_at", rank).result()
    assert two.submit("fail_at", 2).results() == [0, 1]


@pytest.mark.slow
def test_one_that_waits_for_ever_for_one_that_failed_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "STRAGGLER_SECONDS", 0.2)
    executor = ProcessExecutor(Worker, {"num_workers": 2})
    with pytest.raises(ValueError, match="rank 1 failed"):
        executor.submit("fail_or_hang", 1).result()
    with pytest.raises(WorkerLost, match=r"worker 0 \(process \d+\) did not answer"):
        executor.submit("echo", 1).result()
    executor.restart()
    assert executor.submit("echo", 1).results() == [(1,), (1,)]
    executor.close()


@pytest.mark.parametrize(
    ("method", "args", "how"),
    one_in(
        2,
        [
            ("exit", (3,), "exited with status 3"),
            ("exit", (0,), "exited with status 0"),
            ("kill", (), "was killed by SIGKILL; the machine may have run out of memory"),
            ("fork_and_exit", (), "exited with status 3"),
            ("lose_device", (), "has lost its device to an error in a kernel, which it wrote to standard error"),
        ],
    ),
)
def test_a_worker_that_dies_is_lost(process: ProcessExecutor, method: str, args: tuple[Any, ...], how: str) -> None:
    pid = pid_of(process)
    dying = process.submit(method, *args)
    behind = process.submit("echo", np.zeros(100_000))
    for call in (behind, dying, process.submit("echo", 1)):
        with pytest.raises(WorkerLost, match=rf"^worker 0 \(process {pid}\) {how}$"):
            call.result()
    process.restart()
    with pytest.raises(WorkerLost):  # a call made before the restart
        behind.result()
    assert process.submit("echo", 1).result() == (1,)
    assert pid_of(process) != pid


def test_local_says_what_helps_once_the_device_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = LocalExecutor(Worker, {})
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    for lost in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr("torch.cuda.synchronize", [].clear if not lost else [].pop)  # `pop` raises
            with pytest.raises(GuidewayError if lost else ValueError, match="boom") as raised:
                executor.submit("fail", ValueError("boom\nand more")).result()
            assert ("can be used no more in this process: ValueError: boom; start" in str(raised.value)) == lost
    assert executor.submit("echo", 1).result() == (1,)


def test_a_worker_that_dies_between_calls_is_lost(process: ProcessExecutor) -> None:
    pid = pid_of(process)
    done = process.submit("echo", 1)
    assert done.result() == (1,)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerLost, match="SIGKILL"):
        while True:  # until the signal has arrived
            process.submit("echo", 2).result()
    assert done.result() == (1,)


def test_one_lost_worker_takes_the_others_with_it() -> None:
    executor = ProcessExecutor(Worker, {"num_workers": 2})
    pids = [pid for _, _, pid in executor.submit("identity").results()]
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(WorkerLost, match=r"worker 1 .* was killed by SIGKILL"):
        executor.submit("sleep", 600).results()
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
    executor.restart()
    assert {pid for _, _, pid in executor.submit("identity").results()}.isdisjoint(pids)
    executor.close()


TIMEOUT = 1.5


@pytest.fixture(scope="module")
def hurried() -> Iterator[ProcessExecutor]:
    """Yield an executor with a short timeout, whose worker is lost in every test."""
    made = ProcessExecutor(Worker, {"timeout": TIMEOUT})
    yield made
    made.close()


@pytest.mark.parametrize(
    ("method", "args", "why"),
    [
        ("execute", ("compute", 600), "did not answer within"),
        ("sleep", (600,), "did nothing for"),
    ],
)
def test_a_step_that_takes_too_long_is_lost_and_so_is_what_does_nothing(
    hurried: ProcessExecutor, method: str, args: tuple[Any, ...], why: str
) -> None:
    call = hurried.submit(method, *args)
    assert not call.wait(0.1)
    with pytest.raises(WorkerLost, match=rf"^worker 0 \(process \d+\) {why} 1\.5 seconds \(timeout of"):
        call.result()
    assert call.wait(0)
    hurried.restart()


@pytest.mark.slow
@pytest.mark.parametrize("method", everyday(["execute", "compute"], "execute"))
def test_a_worker_that_is_stopped_is_lost(hurried: ProcessExecutor, method: str) -> None:
    call = hurried.submit(method, *(["compute"] if method == "execute" else []), 600)
    os.kill(hurried._group._processes[0].popen.pid, signal.SIGSTOP)
    with pytest.raises(WorkerLost, match="worker 0"):
        call.result()
    hurried.restart()
    assert hurried.submit("echo", 1).result() == (1,)


@pytest.mark.slow
def test_a_worker_that_is_stopped_while_it_is_made_is_lost() -> None:
    with pytest.raises(WorkerLost, match="did nothing"):
        ProcessExecutor(stopping, {"timeout": TIMEOUT})


@pytest.mark.parametrize("how", everyday(["not a step", "torch", "jax"], "not a step"))
def test_what_is_no_step_and_a_step_that_compiles_may_take_longer(hurried: ProcessExecutor, how: str) -> None:
    method, args = ("compute", ()) if how == "not a step" else ("execute", (how,))
    if libraries := {"torch": "torch._dynamo.callback", "jax": "jax.monitoring"}.get(how):
        hurried.submit("imported", libraries).result()
    assert hurried.submit(method, *args, 2 * TIMEOUT).result() == 2 * TIMEOUT


def test_a_program_that_was_stopped_itself_finds_nobody_late(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = ProcessExecutor(Worker, {"timeout": 30})
    call = executor.submit("execute", "compute", 1.0)
    assert not call.wait(0.01)
    monotonic = process_group.time.monotonic
    monkeypatch.setattr(process_group.time, "monotonic", lambda: monotonic() + 1000)
    assert call.result() == 1.0
    executor.close()


def test_what_a_new_worker_raises_while_it_is_made_is_raised_by_the_calls_that_follow(tmp_path: Path) -> None:
    made = tmp_path / "made"
    executor = ProcessExecutor(partial(only_once, made), {})
    executor.restart()
    for method in ("echo", "identity"):
        with pytest.raises(InvalidConfiguration, match="not like this"):
            executor.submit(method).result()
    executor.close()


def test_ctrl_c_concerns_the_parent_alone(process: ProcessExecutor) -> None:
    pid = pid_of(process)
    os.kill(pid, signal.SIGINT)
    assert pid_of(process) == pid


def test_interrupts_at_any_moment_confuse_no_reply(process: ProcessExecutor) -> None:
    """Interrupted calls are dropped; every other call gets its own answer."""
    rng = random.Random(0)
    pid = pid_of(process)
    interrupts = 0
    armed = False

    def interrupt(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for i in range(1000):
            array = np.full(rng.choice([1, 100, 30_000]), i)
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 4e-4))
                call = process.submit("echo", i, array)
                again = process.submit("add_one", array)
                answer, total = call.result(), again.result()
                armed = False
            except KeyboardInterrupt:
                interrupts += 1
                continue
            assert answer[0] == i
            assert (answer[1] == i).all() and len(answer[1]) == len(array)
            assert (total == i + 1).all()
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupts > 50, "the test interrupts too rarely to say anything"
    assert pid_of(process) == pid


@pytest.mark.parametrize("sent", [False, True])
def test_a_command_interrupted_while_it_is_sent_runs_once(
    process: ProcessExecutor, monkeypatch: pytest.MonkeyPatch, sent: bool
) -> None:
    write = os.write

    def interrupted(descriptor: int, data: bytes) -> int:
        monkeypatch.undo()
        if sent:
            write(descriptor, data)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.submit("count")
    assert process.submit("count").result() == 2


def test_an_interrupted_wait_can_be_taken_up_again(process: ProcessExecutor) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    call = process.submit("sleep", 0.5)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            call.result()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert process.submit("echo", 1).result() == (1,)
    assert call.result() == 0.5


def test_what_making_a_worker_raises_is_raised() -> None:
    for kind in (LocalExecutor, ProcessExecutor):
        with pytest.raises(InvalidConfiguration, match="not like this") as raised:
            kind(refused, {})
        assert raised.value.field == "worker.option"


@pytest.mark.parametrize("kind", [LocalExecutor, ProcessExecutor])
def test_close_closes_workers_once_and_restart_before_it_too(kind: type[Executor], tmp_path: Path) -> None:
    note = tmp_path / "note"
    executor = kind(partial(Closing, str(note)), {})
    executor.submit("keep", 1)
    executor.close()
    executor.close()
    assert note.read_text() == "0 "
    with pytest.raises(WorkerLost, match="closed"):
        executor.submit("echo", 1).result()


def test_one_that_does_not_want_to_close_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "CLOSE_SECONDS", 0.5)
    monkeypatch.setattr(process_group, "END_SECONDS", 0.5)
    executor = ProcessExecutor(Clinging, {})
    pid = pid_of(executor)
    executor.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
def test_nothing_stays_open() -> None:
    executor = ProcessExecutor(Worker, {"num_workers": 2})
    open_before = num_open_files()
    for _ in range(3):
        executor.submit("echo", np.zeros(200_000)).result()
        executor.restart()
    executor.submit("echo").result()
    assert num_open_files() == open_before
    executor.close()
    assert num_open_files() < open_before


def test_a_forgotten_executor_lets_its_worker_end() -> None:
    executor = ProcessExecutor(Worker, {})
    popen = executor._group._processes[0].popen
    del executor
    gc.collect()
    assert popen.wait(timeout=60) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "end"),
    [
        ("'echo', 1", "sys.exit()"),
        ("'echo', 1", "os._exit(0)"),
        ("'echo', 1", "os.kill(os.getpid(), signal.SIGKILL)"),
        ("'sleep', 600", "os.kill(os.getpid(), signal.SIGKILL)"),
    ],
)
def test_workers_do_not_outlive_their_parent(call: str, end: str) -> None:
    """The worker has inherited its parent's output, so reading it to the end waits for both."""
    program = (
        "import os, signal, sys\n"
        "from guideway_engine.executors.process.executor import ProcessExecutor\n"
        "from engine_support.executor_workers import Worker\n"
        # no guard for __main__: worker processes do not run the program again
        "executor = ProcessExecutor(Worker, {})\n"
        f"executor.submit({call})\n"
        "print('made', flush=True)\n"
        f"{end}\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=HERE, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("made\n", "")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("local", {"num_workers": 2}, "unknown option 'num_workers' of executor.local"),
        ("process", {"num_worker": 2}, "did you mean 'num_workers'"),
        ("process", {"num_workers": 0}, "'num_workers' of executor.process must be a whole number of at least 1"),
        ("process", {"timeout": 0}, "'timeout' of executor.process must be a number above 0"),
        ("process", {"timeout": "1"}, "'timeout' of executor.process must be"),
    ],
)
def test_options_are_checked(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        Plugins().load("executor", name)(Worker, options)


def test_blocks_are_kept_until_they_have_been_read() -> None:
    """Random writes and frees: blocks that are not freed stay intact, and memory is reused."""
    rng = random.Random(1)
    file = anonymous_file()
    writer, reader = BlockWriter(os.dup(file)), BlockReader(file)
    kept: dict[int, tuple[tuple[int, int], list[bytes]]] = {}
    for number in range(500):
        parts = [rng.randbytes(rng.choice([0, 1, 63, 64, 5000, 100_000])) for _ in range(rng.randrange(4))]
        kept[number] = writer.write(number, [memoryview(part) for part in parts]), parts
        for block, expected in kept.values():
            assert [bytes(part) for part in reader.read(*block)] == expected
        if rng.random() < 0.5:
            upto = rng.choice(list(kept))
            writer.free(upto)
            kept = {n: block for n, block in kept.items() if n > upto}
    assert os.fstat(file).st_size <= 1 << 23
    writer.close()
    reader.close()
