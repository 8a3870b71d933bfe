"""Whole jobs on the local cluster: real processes, real faults, no checkpoints."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from ckpt import Board
from holdfast.base.processes import pids_with_environment, state_of
from launcher.clusters.local.cluster import kill_node
from launcher.core.liveness import SILENCE_S
from launcher.core.replay import History, replay
from launcher.errors import LauncherError
from launcher.history.events import EventLog, parse_event, read_events
from launcher.job.jobfile import JobSpec
from launcher.job.run_id import local_run_id
from launcher.job.stop_request import StopRequest
from launcher.leadership.lease import Leadership
from launcher.leadership.terms import Term, claim
from launcher.runner.memory import memory_dir
from launcher.supervisor import Outcome, supervise
from launcher.supervisor.entry import supervise_here
from launcher.supervisor.folder import make_folders, prepare
from lifecycle.heal.lemons import read_incidents

pytestmark = pytest.mark.long(seconds=150)

# Every rank says that it runs, then waits to be let go; the names of both files hold attempt and rank.
WAIT = """
import os, pathlib, sys, time
job, attempt, rank = pathlib.Path(os.environ["HOLDFAST_JOB_DIR"]), os.environ["HOLDFAST_ATTEMPT"], os.environ["RANK"]
(job / f"up-{attempt}-{rank}").touch()
while not (job / f"go-{attempt}").exists():
    time.sleep(0.01)
"""


class Job:
    """A job in a folder of its own."""

    def __init__(self, folder: Path, script: str, **keys: Any) -> None:
        (folder / "script.py").write_text(script)
        mapping = {"name": "t", "script": str(folder / "script.py"), "nodes": 2, "spares": 1} | keys
        self.spec = JobSpec.from_mapping(mapping, folder)
        self.dir = folder / "job"

    def supervise(self) -> Outcome:
        return supervise(self.spec, self.dir, "local")

    def meanwhile(self, act: Callable[[], None]) -> None:
        """Runs `act` while the job is supervised in the main thread."""
        threading.Thread(target=act, daemon=True).start()

    def wait_for(self, *names: str) -> None:
        until(lambda: all((self.dir / name).exists() for name in names), f"{names}")

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.dir / "events.jsonl") if event["event"] == name]

    def wait_for_event(self, name: str, matches: Callable[[dict[str, Any]], bool] = lambda _: True) -> None:
        until(lambda: any(matches(event) for event in self.events(name)), name)

    def kill_agent(self, node: str, number: signal.Signals = signal.SIGKILL) -> None:
        agent = {"HOLDFAST_RUN_ID": local_run_id(self.dir), "HOLDFAST_ROLE": "agent", "HOLDFAST_NODE": node}
        (pid,) = (
            pid for pid in pids_with_environment(agent) if "shim.py" not in Path(f"/proc/{pid}/cmdline").read_text()
        )
        os.kill(pid, number)

    def log(self, attempt: int, rank: int) -> str:
        return (self.dir / "log" / f"attempt-{attempt}" / f"rank-{rank}.log").read_text()

    def assert_nothing_is_left(self) -> None:
        assert pids_with_environment({"HOLDFAST_RUN_ID": local_run_id(self.dir)}) == []
        assert not memory_dir(local_run_id(self.dir)).exists()

    def assert_every_event_fits_its_type(self) -> None:
        """None is skipped, and no field lost, when it is read back."""
        lines = (self.dir / "events.jsonl").read_bytes().splitlines()
        assert [parse_event(line) for line in lines] == [json.loads(line) for line in lines]


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def make(script: str, **keys: Any) -> Job:
        jobs.append(Job(tmp_path, script, **keys))
        return jobs[-1]

    yield make
    for job in jobs:
        job.assert_nothing_is_left()
        job.assert_every_event_fits_its_type()


def test_script_runs_on_all_ranks_as_torchrun_would_run_it(make_job: Callable[..., Job]) -> None:
    script = """
import json, os, sys, weakref
import torch.distributed as dist
sys.path.index(os.path.dirname(__file__))
dist.init_process_group("gloo")
dist.barrier()  # a rank that ends while another still connects to it would fail that one
group = weakref.ref(dist.group.WORLD)
dist.destroy_process_group()
assert not dist.is_initialized() and group(), "a model that owned it now would block in its destructor"
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "OMP_NUM_THREADS", "MY_OWN",
         "HOLDFAST_NODE", "HOLDFAST_NODES", "HOLDFAST_RANKS_PER_NODE", "HOLDFAST_ATTEMPT", "HOLDFAST_RAM_DIR")
print(json.dumps([sys.argv[1:], __name__, os.environ.get("HOLDFAST_CHECKPOINT"), {n: os.environ[n] for n in names}]))
import atexit
atexit.register(print, "atexit ran")
sys.exit()
"""
    job = make_job(script, spares=0, args=["--lr", 3e-4], workers_per_node=2, env={"MY_OWN": "x y"})
    outcome = job.supervise()
    assert (outcome.name, outcome.exit_code) == ("done", 0)
    said = []
    for rank in range(4):
        line, end = job.log(0, rank).splitlines()
        said.append(json.loads(line))
        assert end == "atexit ran"
    assert all((argv, name, section) == (["--lr", "0.0003"], "__main__", None) for argv, name, section, _ in said)
    env = [values for *_, values in said]
    assert [values["RANK"] for values in env] == ["0", "1", "2", "3"]
    assert [values["LOCAL_RANK"] for values in env] == ["0", "1", "0", "1"]
    assert [values["HOLDFAST_NODE"] for values in env] == ["node0", "node0", "node1", "node1"]
    assert [values["GROUP_RANK"] for values in env] == ["0", "0", "1", "1"]
    run_dir = memory_dir(local_run_id(job.dir))
    expected = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", "MY_OWN": "x y"}
    expected |= {"HOLDFAST_NODES": "node0,node1", "HOLDFAST_RANKS_PER_NODE": "2", "HOLDFAST_ATTEMPT": "0"}
    assert expected.items() <= env[3].items() and env[3]["HOLDFAST_RAM_DIR"] == str(run_dir / "node1")
    result = json.loads((job.dir / "result.json").read_text())
    assert (result["name"], result["exit_code"]) == ("done", 0)
    private = [
        job.dir,
        job.dir / "secret",
        job.dir / "events.jsonl",
        job.dir / "lease",
        job.dir / "result.json",
    ]
    assert [path.stat().st_mode & 0o077 for path in private] == [0] * len(private)


def test_preloaded_modules_are_loaded_once_for_all_attempts(make_job: Callable[..., Job], tmp_path: Path) -> None:
    """A name in a lazy package loads the part that has it."""
    script = """
import os, sys
print([name in sys.modules for name in ("slow", "missing", "lazy.part")])
import slow, lazy.part
print(slow.PID == os.getpid(), lazy.part.PID == os.getpid(), sys.path.count(os.path.dirname(__file__)))
if os.environ["HOLDFAST_ATTEMPT"] == "0":
    os._exit(9)
"""
    (tmp_path / "slow.py").write_text("import os\nPID = os.getpid()")
    (tmp_path / "lazy").mkdir()
    (tmp_path / "lazy" / "part.py").write_text("import os\nPID = os.getpid()")
    (tmp_path / "lazy" / "__init__.py").write_text(
        "import importlib\ndef __getattr__(name):\n"
        "    if name == 'Part':\n        return importlib.import_module('lazy.part').PID\n"
        "    raise AttributeError(name)\n"
    )
    job = make_job(script, nodes=1, spares=0, preload=["missing", "slow", "lazy.Absent", "lazy.Part"])
    assert job.supervise().name == "done"
    assert [job.log(attempt, 0) for attempt in (0, 1)] == ["[True, False, True]\nFalse False 1\n"] * 2


LAZY = (
    "big5", "cp037", "cp1006", "cp1026", "cp1125", "cp1140", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256",
    "cp1257", "cp1258", "cp273", "cp424", "cp500", "cp720", "cp737", "cp775", "cp850", "cp852", "cp855", "cp856",
)  # fmt: skip


def test_what_a_script_loads_is_there_at_its_next_attempt_and_at_the_next_jobs_first(
    make_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its second step, also lazily. The standard library's modules stand for a large package."""
    names = [f"encodings.{name}" for name in LAZY]
    script = f"""
import importlib, os, sys, time
from pathlib import Path
from holdfast import Checkpointer
print(sum(name in sys.modules for name in {names}))
with Checkpointer.from_env() as ckpt:
    step = ckpt.load({{}}) or 0
    while step < 400 and not ckpt.should_stop(step):
        step += 1
        for name in {names}:
            importlib.import_module(name)
        ckpt.should_save(step)
        if os.environ["HOLDFAST_ATTEMPT"] == "0" and any(Path({str(tmp_path)!r}).glob("cache/holdfast/preload/*.json")):
            time.sleep(0.5)
            os._exit(9)
        time.sleep(0.05)
"""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    checkpoint: dict[str, Any] = {"namespace": "learn", "memory": {"every_steps": 1000}}
    job = make_job(script, nodes=1, spares=0, checkpoint=checkpoint)
    assert job.supervise().name == "done"
    assert [job.log(attempt, 0) for attempt in (0, 1)] == ["0\n", f"{len(LAZY)}\n"]


def test_a_scripts_own_modules_win_over_those_of_the_same_name(
    make_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the job is started from their folder, and in a process that the script spawns."""
    script = """
import multiprocessing, sys
import ckpt, launcher, lifecycle, slurm
def own():
    return [module.OWN for module in (ckpt, launcher, lifecycle, slurm)]
if __name__ == "__main__":
    assert "launcher.runner.script" not in sys.modules
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(own(), pool.apply(own))
"""
    job = make_job(script, nodes=1, spares=0)
    for name in ("ckpt", "launcher", "lifecycle", "slurm"):
        (tmp_path / f"{name}.py").write_text(f"OWN = {name[:2]!r}")
    monkeypatch.chdir(tmp_path)
    assert job.supervise().name == "done"
    own = ["ck", "la", "li", "sl"]
    assert job.log(0, 0) == f"{own} {own}\n"


def test_same_exception_twice_ends_the_job_with_its_traceback(make_job: Callable[..., Job]) -> None:
    script = """
import os, time
if os.environ["RANK"] == "1":
    raise ValueError(f"bad batch {os.getpid()}")
time.sleep(600)
"""
    outcome = make_job(script, nodes=1, spares=0, workers_per_node=2).supervise()
    assert (outcome.name, outcome.exit_code) == ("user_error", 10)
    assert "rank 1 on node0 exited with code 1: ValueError: bad batch" in outcome.reason
    assert 'script.py", line 4, in <module>' in outcome.reason and "runpy" not in outcome.reason


def test_an_error_of_any_length_ends_the_job(make_job: Callable[..., Job]) -> None:
    """load_state_dict names each key that does not fit; the message to the supervisor has a limit."""
    outcome = make_job("raise KeyError('missing: ' + 'layer.0.weight ' * 500_000)", nodes=1, spares=0).supervise()
    assert (outcome.name, outcome.exit_code) == ("user_error", 10)
    assert "KeyError: 'missing: layer.0.weight" in outcome.reason and len(outcome.reason) < 100_000


def test_same_last_words_twice_end_the_job_with_them(make_job: Callable[..., Job]) -> None:
    job = make_job("import os, sys\nsys.exit(f'no file {os.getpid()}')", spares=0, nodes=1)
    outcome = job.supervise()
    assert (outcome.name, outcome.exit_code, len(job.events("attempt_start"))) == ("user_error", 10, 2)
    first, _, words = outcome.reason.partition("\n")
    assert "rank 0 on node0 exited with code 1: no file" in first and words.startswith("no file ")


def test_a_script_that_resumes_from_its_own_checkpoints_outlives_more_faults_than_attempts_without_progress(
    make_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """
import os, pathlib
out = pathlib.Path("out")
out.mkdir(exist_ok=True)
step = max((int(file.stem) for file in out.glob("*.pt")), default=0)
while step < 40:
    step += 1
    (out / f"{step}.pt").touch()
    if step % 10 == 0 and step < 40:
        os._exit(9)
"""
    monkeypatch.chdir(tmp_path)
    job = make_job(script, nodes=1, spares=0, progress="out/*.pt", restart={"max_without_progress": 2})
    assert job.supervise().name == "done"
    assert len(job.events("fault")) == 3 and not job.events("backoff")
    none_yet, *files = [event["file"] for event in job.events("own_checkpoint")]
    assert (none_yet, job.events("problem")) == ("", []) and all(files)


def test_exit_codes_and_limits_are_named(make_job: Callable[..., Job]) -> None:
    job = make_job("import sys; sys.exit(3)", spares=0, nodes=1, restart={"max_without_progress": 3})
    outcome = job.supervise()
    assert (outcome.name, outcome.exit_code) == ("no_progress", 11)
    assert "rank 0 on node0 exited with code 3" in outcome.reason
    first, second, third = job.events("attempt_start")
    assert [event["rung"] for event in (first, second, third)] == ["start", "workers", "workers"]
    (backoff,) = job.events("backoff")
    assert backoff["seconds"] == 2 and second["time"] < backoff["time"] <= third["time"] - 2


def test_lost_node_is_replaced_by_the_spare_in_its_place(make_job: Callable[..., Job]) -> None:
    job = make_job(WAIT, workers_per_node=2)

    def lose_a_node() -> None:
        job.wait_for(*(f"up-0-{rank}" for rank in range(4)))
        assert kill_node(job.dir, "node0")
        job.wait_for(*(f"up-1-{rank}" for rank in range(4)))
        (job.dir / "go-1").touch()

    job.meanwhile(lose_a_node)
    assert job.supervise().name == "done"
    first, second = job.events("attempt_start")
    assert (first["nodes"], first["spares"], first["rung"]) == (["node0", "node1"], ["node2"], "start")
    assert (second["nodes"], second["spares"], second["rung"]) == (["node2", "node1"], [], "spare")
    (fault,) = job.events("fault")
    assert (fault["kind"], fault["node"]) == ("node_lost", "node0")
    assert fault["detect"] == 0.0, "at once, by its closed connection"
    (out,) = job.events("node_out")
    assert out["node"] == "node0" and out["reason"]


def test_node_that_falls_silent_is_noticed_within_three_seconds(make_job: Callable[..., Job]) -> None:
    job = make_job(WAIT, nodes=1)

    def silence_a_node() -> None:
        job.wait_for("up-0-0")
        for pid in pids_with_environment({"HOLDFAST_RUN_ID": local_run_id(job.dir), "HOLDFAST_NODE": "node0"}):
            os.kill(pid, signal.SIGSTOP)
        job.wait_for("up-1-0")
        (job.dir / "go-1").touch()

    job.meanwhile(silence_a_node)
    assert job.supervise().name == "done"
    (fault,) = job.events("fault")
    assert (fault["kind"], fault["node"]) == ("node_lost", "node0")
    assert 3 > SILENCE_S <= fault["detect"] and "silent for" in fault["reason"]


def test_without_a_spare_the_local_job_ends_and_names_the_node(make_job: Callable[..., Job]) -> None:
    job = make_job(WAIT, spares=0)

    def lose_a_node() -> None:
        job.wait_for("up-0-0", "up-0-1")
        kill_node(job.dir, "node1")

    job.meanwhile(lose_a_node)
    outcome = job.supervise()
    assert (outcome.name, outcome.exit_code) == ("too_few_nodes", 12)
    assert "node1" in outcome.reason


NO_TORCH = "import os, sys\nif os.environ.get('HOLDFAST_NODE') in {nodes!r}:\n    sys.modules['torch'] = None\n"


def test_a_python_without_torch_is_the_users_to_mend_and_no_fault_of_the_nodes(
    make_job: Callable[..., Job], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_TORCH.format(nodes=("node0", "node1", "node2")))
    job = make_job("", env={"PYTHONPATH": str(tmp_path)})
    outcome = job.supervise()
    assert (outcome.name, outcome.exit_code) == ("user_error", 10)
    assert outcome.reason.startswith("on none of the job's nodes its Python loads what it needs: ")
    assert "cannot load torch: ModuleNotFoundError" in outcome.reason
    assert {fault["kind"] for fault in job.events("fault")} == {"environment"}
    assert len(job.events("node_out")) >= 2 and read_incidents(job.dir / "events.jsonl") == []
    *before, end = read_events(job.dir / "events.jsonl")
    assert end["event"] == "job_end"  # after it no node is out
    assert not replay([*before, {"event": "job_start", "time": 0.0}], History()).out, "a requeue tries them again"


def test_a_node_whose_python_has_no_torch_is_replaced(make_job: Callable[..., Job], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_TORCH.format(nodes=("node0",)))
    job = make_job("", nodes=1, env={"PYTHONPATH": str(tmp_path)})
    assert job.supervise().name == "done"
    (out,) = job.events("node_out")
    assert out["node"] == "node0" and out["environment"]
    *before, end = read_events(job.dir / "events.jsonl")
    assert end["event"] == "job_end"  # after it no node is out
    assert set(replay(before, History()).out.keys()) == {"node0"}


def test_lost_spare_disturbs_nobody(make_job: Callable[..., Job]) -> None:
    job = make_job(WAIT, nodes=1)

    def lose_the_spare() -> None:
        job.wait_for("up-0-0")
        kill_node(job.dir, "node1")
        job.wait_for_event("node_out")
        (job.dir / "go-0").touch()

    job.meanwhile(lose_the_spare)
    assert job.supervise().name == "done"
    assert len(job.events("attempt_start")) == 1 and job.events("fault") == []


def test_interrupt_ends_the_job_at_once(make_job: Callable[..., Job]) -> None:
    job = make_job(WAIT, nodes=1, spares=0)

    def interrupt() -> None:
        job.wait_for("up-0-0")
        os.kill(os.getpid(), signal.SIGINT)

    job.meanwhile(interrupt)
    before = signal.getsignal(signal.SIGINT)
    outcome = job.supervise()
    assert (outcome.name, outcome.exit_code) == ("cancelled", 13)
    assert signal.getsignal(signal.SIGINT) is before


def test_stopped_job_goes_on_with_the_next_attempt_in_the_same_folder(make_job: Callable[..., Job]) -> None:
    job = make_job(WAIT, nodes=1, spares=0)

    def stop() -> None:
        job.wait_for("up-0-0")
        os.kill(os.getpid(), signal.SIGTERM)

    job.meanwhile(stop)
    outcome = job.supervise()
    assert (outcome.name, outcome.exit_code) == ("stopped", 0)
    assert not (job.dir / "result.json").exists()
    (job.dir / "go-1").touch()
    assert job.supervise().name == "done"
    assert [(e["attempt"], e["rung"]) for e in job.events("attempt_start")] == [(0, "start"), (1, "requeue")]
    assert [event["reason"] for event in job.events("stop_requested")] == ["requeue"]


def test_the_agreed_stop_wins_over_a_scripts_sigterm_handler_where_the_script_asks_for_it(
    make_job: Callable[..., Job],
) -> None:
    """Slurm sends SIGTERM to every process of a job that it requeues."""
    rarely = CHECKPOINT | {"memory": {"every_steps": 100_000}}  # only the agreed stop saves
    job = make_job(HANDLES_SIGTERM, nodes=1, spares=0, workers_per_node=2, checkpoint=rarely)

    def requeue(attempt: int) -> None:
        job.wait_for(f"up-{attempt}-0", f"up-{attempt}-1")
        ranks = {int((job.dir / f"pid-{attempt}-{rank}").read_text()) for rank in (0, 1)}
        for pid in set(pids_with_environment({"HOLDFAST_RUN_ID": local_run_id(job.dir)})) - ranks:
            os.kill(pid, signal.SIGTERM)
        if attempt == 0:
            job.wait_for_event("first_step")
            job.wait_for_event("problem", lambda event: event["what"].startswith("the script handles SIGTERM itself"))
        for pid in ranks:
            os.kill(pid, signal.SIGTERM)

    job.meanwhile(lambda: requeue(0))
    assert job.supervise().name == "stopped"
    assert job.events("problem")[-1]["what"].startswith("ranks ended in the stop without the save that all agree on")
    problems = len(job.events("problem"))
    job.meanwhile(lambda: requeue(1))
    assert job.supervise().name == "stopped"
    assert len(job.events("problem")) == problems and job.events("stop_agreed")
    last = {job.log(1, rank).splitlines()[-1] for rank in (0, 1)}
    assert len(last) == 1 and last.pop().startswith("stopped at"), "both ranks, at one step"
    shutil.rmtree(memory_dir(local_run_id(job.dir)))  # a third start would go on from there


def test_a_job_without_checkpoints_stops_by_its_scripts_own_sigterm_handlers(make_job: Callable[..., Job]) -> None:
    """Each rank has the time to save, also when others have ended, on its node or another, in whatever way."""
    job = make_job(SAVES_ON_SIGTERM, spares=0, workers_per_node=2)

    def stop() -> None:
        job.wait_for(*(f"up-{rank}" for rank in range(4)))
        StopRequest(host="here").write(job.dir)
        job.wait_for(*(f"stops-{rank}" for rank in range(4)))
        for rank in (1, 2, 3, 0):
            pid = int((job.dir / f"up-{rank}").read_text())
            (job.dir / f"go-{rank}").touch()
            until(lambda: state_of(pid) in ("", "Z"), f"end of rank {rank}")  # noqa: B023

    job.meanwhile(stop)
    outcome = job.supervise()
    assert outcome.name == "halted", outcome
    saved = [(job.dir / f"stops-{rank}").read_text() for rank in range(4)]
    assert saved == ["saved once"] * 4
    assert not job.events("problem")


def test_killed_supervisor_takes_everything_along(tmp_path: Path) -> None:
    job = Job(tmp_path, WAIT, nodes=1, spares=0)
    code = (
        "import sys; from pathlib import Path; from launcher.job.jobfile import JobSpec; import json;"
        "from launcher.supervisor import supervise;"
        "spec = JobSpec.from_json(json.loads(sys.argv[1])); supervise(spec, Path(sys.argv[2]), 'local')"
    )
    argv = [sys.executable, "-c", code, json.dumps(job.spec.to_json()), str(job.dir)]
    supervisor = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    job.wait_for("up-0-0")
    supervisor.kill()
    supervisor.wait()
    until(lambda: not pids_with_environment({"HOLDFAST_RUN_ID": local_run_id(job.dir)}), "all to end with it", 5)
    (job.dir / "go-1").touch()
    assert job.supervise().name == "done"
    job.assert_nothing_is_left()


def test_second_supervisor_of_a_job_is_refused(tmp_path: Path) -> None:
    job = Job(tmp_path, WAIT)
    job.dir.mkdir()
    log = EventLog(job.dir / "events.jsonl")
    with pytest.raises(LauncherError, match="another supervisor"):
        job.supervise()
    log.close()


def test_a_successor_knows_what_was_decided_until_its_own_first_line(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor before it goes on for as long as it has not seen the higher term."""
    job = make_job("", nodes=1, spares=0)
    make_folders(job.dir)
    prepare(job.spec, job.dir)
    before = EventLog(job.dir / "events.jsonl", lock=False)
    before.term = 1
    take = Leadership.take

    def decided_meanwhile(leadership: Leadership, port: int, after: int | None) -> None:
        take(leadership, port, after)
        before.append("attempt_start", attempt=6, nodes=["node0"], spares=[], rung="workers")

    monkeypatch.setattr(Leadership, "take", decided_meanwhile)
    claim(job.dir, Term(number=1, run_id="run", node=None, host="127.0.0.1", port=1, pid=1))
    assert supervise_here(job.spec, job.dir, "local", take_over=1).name == "done"
    assert [event["attempt"] for event in job.events("attempt_start")] == [6, 7]
    assert [event["term"] for event in job.events("takeover")] == [2]


def test_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    job = Job(tmp_path, WAIT)
    job.dir.write_text("in the way")
    with pytest.raises(LauncherError, match="cannot be the job's folder"):
        job.supervise()


# The first attempt goes on until it is killed, or let go; the next makes ten more steps.
CHECKPOINTED = """
import os, pathlib, time
import torch
from ckpt import Checkpointer
job, attempt = pathlib.Path(os.environ["HOLDFAST_JOB_DIR"]), os.environ["HOLDFAST_ATTEMPT"]
state = {"x": torch.zeros(10)}
(job / f"pid-{attempt}-{os.environ['RANK']}").write_text(str(os.getpid()))
with Checkpointer.from_env() as ckpt:
    step = first = ckpt.load(state) or 0
    while step < first + 10 if attempt != "0" else not (job / "go-0").exists():
        step += 1
        state["x"] += 1
        if ckpt.should_save(step):
            ckpt.save(step, state)
        time.sleep(0.01)
assert state["x"][0] == step
"""
HANDLES_SIGTERM = """
import os, pathlib, signal, sys, time
import torch
from ckpt import Checkpointer
job, attempt, rank = pathlib.Path(os.environ["HOLDFAST_JOB_DIR"]), os.environ["HOLDFAST_ATTEMPT"], os.environ["RANK"]
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
(job / f"pid-{attempt}-{rank}").write_text(str(os.getpid()))
state = {"x": torch.zeros(1)}
with Checkpointer.from_env() as ckpt:
    step = ckpt.load(state) or 0
    while True:
        step += 1
        if ckpt.should_save(step):
            ckpt.save(step, state)
        if attempt != "0" and ckpt.should_stop(step):
            break
        if step == 3:
            (job / f"up-{attempt}-{rank}").touch()
        while attempt == "0" and step == 3:  # the signal comes in the middle of a step, before the agreed one
            time.sleep(0.01)
        time.sleep(0.01)
print("stopped at", step)
"""
SAVES_ON_SIGTERM = """
import os, pathlib, signal, sys, time
job, rank = pathlib.Path(os.environ["HOLDFAST_JOB_DIR"]), int(os.environ["RANK"])
signals = 0
def save(*_):
    global signals
    signals += 1
    if signals > 1:
        return
    (job / f"stops-{rank}").touch()
    while not (job / f"go-{rank}").exists():
        time.sleep(0.01)
    (job / f"stops-{rank}").write_text("saved " + ("once" if signals == 1 else "twice"))
    sys.exit(rank % 2)
signal.signal(signal.SIGTERM, save)
(job / f"up-{rank}.draft").write_text(str(os.getpid()))
(job / f"up-{rank}.draft").rename(job / f"up-{rank}")
while True:
    time.sleep(0.01)
"""
UNSAVED = """
import json, os, pathlib, time, torch
from ckpt import Checkpointer
events = pathlib.Path(os.environ["HOLDFAST_JOB_DIR"]) / "events.jsonl"
def is_told(step):
    told = [json.loads(line) for line in events.read_text().splitlines(True) if line.endswith("\\n")]
    return any(event["step"] == step and "shared" in (event.get("tier"), event.get("failed")) for event in told)
state = {"x": torch.zeros(10)}
with Checkpointer.from_env() as ckpt:
    ckpt.load(state)
    shared = pathlib.Path(os.environ["SHARED"])
    for step in (1, 2, 3):
        if step == int(os.environ["FAILS_FROM"]):
            shared.rename(shared.with_name("away"))
            shared.write_text("full, say")
        ckpt.save(step, state)
        while not is_told(step):
            time.sleep(0.02)
"""
PY_SPY = Path(sys.executable).parent / "py-spy"  # an optional part
CHECKPOINT = {"namespace": "t", "memory": {"every_steps": 2, "keep": 2}, "redundancy": {"scheme": "partner"}}


@pytest.mark.parametrize(
    ("fails_from", "name", "said"),
    [
        (1, "unsaved", "kept: no step: memory is freed with the job; not saved in shared: no step is there (step 3: "),
        (3, "done", "kept: step 2 in shared; not saved in shared: the newest step there is 2 (step 3: "),
        (4, "done", "kept: step 3 in shared"),
    ],
)
def test_a_job_that_is_done_says_what_it_could_not_save(
    make_job: Callable[..., Job], tmp_path: Path, fails_from: int, name: str, said: str
) -> None:
    checkpoint = {"memory": {"every_steps": 1}, "shared": {"path": str(tmp_path / "shared"), "every_steps": 1}}
    env = {"SHARED": str(tmp_path / "shared"), "FAILS_FROM": fails_from}
    job = make_job(UNSAVED, nodes=1, spares=0, checkpoint=checkpoint, env=env)
    outcome = job.supervise()
    assert (outcome.name, outcome.exit_code) == (name, 15 if name == "unsaved" else 0)
    assert outcome.reason.startswith(said) and (fails_from < 4 or outcome.reason == said)
    assert json.loads((job.dir / "result.json").read_text())["reason"] == outcome.reason


def test_lost_agents_are_replaced_while_training_goes_on(make_job: Callable[..., Job]) -> None:
    """Then a node is lost: what the new agents have saved is what the job goes on from."""
    job = make_job(CHECKPOINTED, checkpoint=CHECKPOINT)
    steps: dict[str, int] = {}
    saved_again = 0

    def step() -> int:
        board = Board.open(memory_dir(local_run_id(job.dir), "node0"))
        try:
            return board.rows()[0].step
        finally:
            board.close()

    def lose_an_agent_then_a_node() -> None:
        nonlocal saved_again
        job.wait_for_event("commit")
        job.kill_agent("node1")
        for name in ("agents_lost", "agents_back"):
            job.wait_for_event(name)
            steps[name] = step()
        back_s = job.events("agents_back")[0]["time"]
        job.wait_for_event("commit", lambda event: event["time"] > back_s)
        saved_again = job.events("commit")[-1]["step"]
        kill_node(job.dir, "node1")

    job.meanwhile(lose_an_agent_then_a_node)
    assert job.supervise().name == "done"
    (lost,), (back,) = job.events("agents_lost"), job.events("agents_back")
    assert (lost["generation"], back["generation"]) == (0, 1) and back["seconds"] > 0
    assert steps["agents_back"] > steps["agents_lost"]  # nobody waited for the agents
    assert saved_again >= steps["agents_lost"]
    assert [fault["kind"] for fault in job.events("fault")] == ["node_lost"]
    assert [event["rung"] for event in job.events("attempt_start")] == ["start", "spare"]
    assert job.events("restore")[1]["step"] >= saved_again


def test_a_memory_directory_that_is_removed_is_made_again_and_its_next_save_survives_a_lost_node(
    make_job: Callable[..., Job],
) -> None:
    job = make_job(CHECKPOINTED, checkpoint=CHECKPOINT)
    saved_again = 0

    def remove_it_then_lose_another_node() -> None:
        nonlocal saved_again
        job.wait_for_event("commit")
        is_removed = False
        while not is_removed:  # its agent may just be making a file there
            with contextlib.suppress(OSError):
                shutil.rmtree(memory_dir(local_run_id(job.dir), "node1"))
                is_removed = True
        job.wait_for_event("problem", lambda event: event["what"] == "memory directory removed")
        made_s = job.events("problem")[-1]["time"]
        job.wait_for_event("commit", lambda event: event["time"] > made_s)
        saved_again = job.events("commit")[-1]["step"]
        kill_node(job.dir, "node0")

    job.meanwhile(remove_it_then_lose_another_node)
    assert job.supervise().name == "done"
    assert [event["what"] for event in job.events("problem")].count("memory directory removed") == 1
    assert [event["rung"] for event in job.events("attempt_start")] == ["start", "spare"]
    assert job.events("restore")[1]["step"] >= saved_again


def test_agents_that_are_lost_too_often_are_given_up_and_training_goes_on(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the job does not wait for them either."""
    monkeypatch.setattr("launcher.core.agent_world.RENEW_AFTER_S", (0.0,))
    job = make_job(CHECKPOINTED, nodes=1, spares=0, checkpoint=CHECKPOINT)

    def lose_all_agents() -> None:
        job.wait_for_event("commit")
        job.kill_agent("node0")
        job.wait_for_event("agents_back")
        job.kill_agent("node0")
        job.wait_for_event("problem", lambda event: "lost again and again" in event["what"])
        (job.dir / "go-0").touch()

    job.meanwhile(lose_all_agents)
    assert job.supervise().name == "done"
    assert job.events("fault") == [] and len(job.events("attempt_start")) == 1
    assert [event["generation"] for event in job.events("agents_lost")] == [0, 1]


def test_stopped_agent_is_found_named_and_replaced_while_training_goes_on(make_job: Callable[..., Job]) -> None:
    job = make_job(CHECKPOINTED, spares=0, checkpoint=CHECKPOINT)

    def stop_an_agent() -> None:
        job.wait_for_event("commit")
        job.kill_agent("node1", signal.SIGSTOP)
        job.wait_for_event("agents_back")
        back_s = job.events("agents_back")[0]["time"]
        job.wait_for_event("commit", lambda event: event["time"] > back_s)
        (job.dir / "go-0").touch()

    job.meanwhile(stop_an_agent)
    assert job.supervise().name == "done"
    (lost,) = job.events("agents_lost")
    assert lost["node"] == "node1" and "is stopped" in lost["reason"]
    assert job.events("fault") == [] and len(job.events("attempt_start")) == 1


def test_killed_worker_goes_on_from_memory_and_the_story_is_told(make_job: Callable[..., Job]) -> None:
    job = make_job(CHECKPOINTED, nodes=1, spares=0, workers_per_node=2, checkpoint=CHECKPOINT)

    def kill_a_worker() -> None:
        job.wait_for_event("commit", lambda event: event["step"] >= 10)
        os.kill(int((job.dir / "pid-0-1").read_text()), signal.SIGKILL)

    job.meanwhile(kill_a_worker)
    assert job.supervise().name == "done"
    (fault,) = job.events("fault")
    assert (fault["kind"], fault["node"], fault["rank"]) == ("process_exit", "node0", 1)
    first, second = job.events("restore")
    assert (first["tier"], second["tier"]) == ("none", "memory") and 10 <= second["step"] <= fault["step"]
    assert job.events("attempt_start")[1]["rung"] == "workers"
    assert job.events("first_step")[1]["step"] > second["step"]


# Two ranks step together; in the first attempt rank 1 waits for a lock that nobody gives back, once it is told to.
LOCKED = """
import os, pathlib, threading, time
import torch
import torch.distributed as dist
job, attempt, rank = pathlib.Path(os.environ["HOLDFAST_JOB_DIR"]), os.environ["HOLDFAST_ATTEMPT"], os.environ["RANK"]
def take_the_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # for ever
dist.init_process_group("gloo")
for step in range(5):
    dist.all_reduce(torch.ones(1))
    if (attempt, rank, step) == ("0", "1", 3):
        take_the_lock()
"""


def test_stopped_worker_is_found_named_and_restarted(make_job: Callable[..., Job]) -> None:
    hang = {"hang_timeout_s": 3}
    job = make_job(CHECKPOINTED, nodes=1, spares=0, workers_per_node=2, checkpoint=CHECKPOINT, restart=hang)
    stopped_at = 0.0

    def stop_a_worker() -> None:
        nonlocal stopped_at
        job.wait_for_event("commit", lambda event: event["step"] >= 10)
        stopped_at = time.time()
        os.kill(int((job.dir / "pid-0-1").read_text()), signal.SIGSTOP)

    job.meanwhile(stop_a_worker)
    assert job.supervise().name == "done"
    (fault,) = job.events("fault")
    assert (fault["kind"], fault["node"], fault["rank"]) == ("hang", "node0", 1), fault
    assert "(restart.hang_timeout_s: 3); rank 1 on node0: stopped by a signal" in fault["reason"]
    assert fault["time"] - stopped_at >= 3 and fault["detect"] >= 3
    assert job.events("attempt_start")[1]["rung"] == "workers"
    assert job.events("restore")[1]["step"] >= 10
    running, stopped = (job.dir / "log" / "attempt-0" / f"rank-{rank}.stack" for rank in (0, 1))
    assert "script.py" in running.read_text() and "rank 0, pid" in running.read_text()
    assert "T (stopped)" in stopped.read_text()
    if PY_SPY.exists():
        assert "script.py" in stopped.read_text()


def test_rank_that_blocks_is_found_by_silence_where_no_steps_are_told(make_job: Callable[..., Job]) -> None:
    job = make_job(LOCKED, spares=0, restart={"hang_timeout_s": 3})
    assert job.supervise().name == "done"
    (fault,) = job.events("fault")
    assert (fault["kind"], fault["node"], fault["rank"]) == ("hang", "node1", 1), fault
    assert "no output and no CPU time of any worker" in fault["reason"] and "weaker evidence" in fault["reason"]
    assert "in which rank 0 waits: it waits for a lock or another thread, in take_the_lock (" in fault["reason"]
    assert "rank 1 on node1: has not entered all_reduce" in fault["reason"]
    waiting, locked = (job.dir / "log" / "attempt-0" / f"rank-{rank}.stack" for rank in (0, 1))
    assert "--- collectives entered, oldest first" in waiting.read_text()
    assert "all_reduce" in waiting.read_text() and "script.py" in waiting.read_text()
    assert "in take_the_lock" in locked.read_text()
    assert len(job.events("attempt_start")) == 2


def test_rank_that_stands_still_after_another_has_ended_is_ended(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.core.hang.ENDED_S", 1.5)
    script = """
import os, time
if (os.environ["HOLDFAST_ATTEMPT"], os.environ["RANK"]) == ("0", "1"):
    time.sleep(600)
"""
    job = make_job(script, spares=0, nodes=1, workers_per_node=2)
    assert job.supervise().name == "done"
    (fault,) = job.events("fault")
    assert (fault["kind"], fault["rank"]) == ("hang", 1) and fault["reason"].startswith("a rank has ended"), fault
    assert "script.py:4" in fault["reason"]


def test_the_warnings_of_the_time_limit_sent_to_every_process_end_none(make_job: Callable[..., Job]) -> None:
    """As Slurm sends it for a job submitted with --signal=USR2@90, without the B: that spares the steps."""
    job = make_job(WAIT, nodes=1, spares=0)

    def warn() -> None:
        job.wait_for("up-0-0")
        pids = pids_with_environment({"HOLDFAST_RUN_ID": local_run_id(job.dir)})
        assert len(pids) >= 3  # runner, warm process, worker
        for warning in (signal.SIGUSR1, signal.SIGUSR2):
            for pid in pids:
                os.kill(pid, warning)
        (job.dir / "go-0").touch()

    job.meanwhile(warn)
    assert job.supervise().name == "done"
    assert not job.events("fault") and len(job.events("attempt_start")) == 1
