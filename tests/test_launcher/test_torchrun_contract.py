"""What a program finds under torchrun, it finds in a worker: variables, arguments, exit codes and error files."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.connections.host_addresses import ranges
from launcher.runner.port import free_port
from launcher.runner.workers import Workers

SHOW = """
import json, os, sys
facts = {"argv": sys.argv, "environment": dict(os.environ), "path": sys.path[0]}
with open(f"{os.environ['WHERE']}/{os.environ['RANK']}.json", "w") as file:
    json.dump(facts, file)
"""
# Those whose value depends on the run: a worker has them as well, with values of its own.
OF_THE_RUN = {
    "WHERE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "ROLE_NAME",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
}  # fmt: skip


def task(folder: Path, attempt: int = 0, workers: int = 1, **program: Any) -> dict[str, Any]:
    return {
        "attempt": attempt, "max_restarts": 3, "env": {"WHERE": str(folder)}, "args": ["--lr", "a b"],
        "workers": workers, "node_rank": 0, "nodes": 1, "master_addr": "127.0.0.1", "master_port": free_port(),
        "run_id": "run", "log_dir": str(folder), "hosts": ranges(["127.0.0.1"]), "rendezvous_timeout_s": 60,
        "agreed_stop": False, "measure_steps": False, "extensions": None,
        "script": None, "module": None, "command": [], "log_rules": [],
        **program,
    }  # fmt: skip


def ends(*tasks: dict[str, Any], **warm: Any) -> list[list[dict[str, Any]]]:
    """Runs attempts one after another in one warm process; what each has reported, up to its end."""

    async def run() -> list[list[dict[str, Any]]]:
        reports: list[dict[str, Any]] = []
        workers = Workers(reports.append)
        running = asyncio.create_task(workers.run(**warm))
        found = []
        for each in tasks:
            reports.clear()
            workers.start(each)
            while not any(report["event"] in ("ended", "broken") for report in reports):
                await asyncio.sleep(0.01)
            found.append(list(reports))
            await workers.kill(5.0)
        await workers.close(5.0)
        running.cancel()
        return found

    return asyncio.run(asyncio.wait_for(run(), 150))


def shown(folder: Path, rank: int) -> dict[str, Any]:
    return dict(json.loads((folder / f"{rank}.json").read_text()))


def test_a_worker_has_every_variable_that_torchrun_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBMITIT_LOCAL_JOB_ID", "supervisors")
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for folder in (theirs, ours):
        folder.mkdir()
    script = tmp_path / "show.py"
    script.write_text(SHOW)
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment = {name: value for name, value in environment.items() if not name.startswith("SUBMITIT_")}
    subprocess.run(
        [*argv, "--lr", "a b"], env=environment | {"WHERE": str(theirs)}, check=True, timeout=120, capture_output=True
    )
    ((*_, end),) = ends(task(ours, workers=2, script=str(script)))
    assert end["ok"]
    for rank in range(2):
        expected, found = shown(theirs, rank), shown(ours, rank)
        assert found["argv"] == expected["argv"] and found["path"] == expected["path"]
        set_by_torchrun = {
            name: value for name, value in expected["environment"].items() if environment.get(name) != value
        }
        set_by_torchrun.pop("TORCHELASTIC_SIGNALS_TO_HANDLE", None)  # for its own agent
        assert set_by_torchrun.keys() <= found["environment"].keys()
        for name in set_by_torchrun.keys() - OF_THE_RUN:
            assert found["environment"][name] == set_by_torchrun[name], name
        assert not [name for name in found["environment"] if name.startswith("SUBMITIT_")]


ABOUT = """
import json, os, sys
facts = {"cwd": os.getcwd(), "stdin": sys.stdin.read(), "environment": dict(os.environ)}
with open(os.environ["WHERE"] + "/0.json", "w") as file:
    json.dump(facts, file)
print("printed")
"""


def test_a_worker_runs_where_its_runner_does_with_an_empty_stdin_and_its_files_beside_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "where"
    where.mkdir()
    monkeypatch.chdir(where)
    script = tmp_path / "about.py"
    script.write_text(ABOUT)
    variables = {"WHERE": str(tmp_path), "OMP_NUM_THREADS": "3"}
    ((*_, end),) = ends(task(tmp_path, script=str(script), env=variables))
    found = shown(tmp_path, 0)
    assert end["ok"] and (found["cwd"], found["stdin"]) == (str(where), "")
    assert found["environment"]["OMP_NUM_THREADS"] == "3" and found["environment"]["ROLE_NAME"] == "worker"
    assert Path(found["environment"]["TORCHELASTIC_ERROR_FILE"]).parent == tmp_path
    assert (tmp_path / "rank-0.log").read_text() == "printed\n"


ONE_FAILS = """
import os, signal, sys, time
from pathlib import Path
other = Path(os.environ["WHERE"], "pid")
if os.environ["RANK"] == "0":
    other.with_suffix(".new").write_text(str(os.getpid()))
    other.with_suffix(".new").rename(other)
    signal.pause()
while not other.exists():
    time.sleep(0.01)
sys.exit(5)
"""


def test_the_other_ranks_of_one_that_fails_are_killed(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(ONE_FAILS)
    ((*_, end),) = ends(task(tmp_path, workers=2, script=str(script)))
    assert not end["ok"] and (end["failures"][0]["rank"], end["failures"][0]["exit_code"]) == (1, 5)
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()


def test_an_attempt_is_a_restart_of_one_run(tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    script.write_text(SHOW + "sys.exit(3)")
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
    ((*_, end),) = ends(task(tmp_path, attempt=2, script=str(script)))
    assert [shown(tmp_path, 0)["environment"][name] for name in names] == ["run", "2", "3"]
    assert not end["ok"] and end["failures"][0]["exit_code"] == 3


@pytest.mark.parametrize("is_recorded", [True, False])
def test_an_exception_that_ends_a_program_is_reported_with_its_frames(tmp_path: Path, is_recorded: bool) -> None:
    """`command` is torchrun's --no-python; there `@record` writes the file."""
    script = tmp_path / "fails.py"
    script.write_text(
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        + "@record\n" * is_recorded
        + "def main():\n    raise ValueError('no data')\nmain()\n"
    )
    second = tmp_path / "attempt-1"
    second.mkdir()
    as_script, as_command = ends(
        task(tmp_path, script=str(script)),
        task(tmp_path, attempt=1, command=[sys.executable, str(script)], log_dir=str(second)),
    )
    (failure,) = as_script[-1]["failures"]
    assert (failure["rank"], failure["exit_code"], failure["error"]) == (0, 1, "ValueError: no data")
    assert failure["traceback"].splitlines()[1].startswith(f'  File "{script}"')
    (failure,) = as_command[-1]["failures"]
    assert failure["exit_code"] == 1 and failure["last_words"].endswith("ValueError: no data")
    assert (failure["error"] == "ValueError: no data") is is_recorded


def test_modules_that_are_preloaded_see_the_jobs_own_variables(tmp_path: Path) -> None:
    """Settings such as TORCHINDUCTOR_* and TORCH_LOGS are read when torch is imported."""
    (tmp_path / "reads.py").write_text("import os\nSEEN = os.environ.get('MY_SETTING')")
    script = tmp_path / "shows.py"
    script.write_text("import sys\nsys.exit(0 if sys.modules['reads'].SEEN == 'on' else 3)")
    ((*_, end),) = ends(
        task(tmp_path, script=str(script)), preload=[str(tmp_path), "reads"], variables={"MY_SETTING": "on"}
    )
    assert end["ok"]


KILLED_IN_A_BUILD = """
import os, signal, sys
folder = os.path.join(os.environ["TORCH_EXTENSIONS_DIR"], "fused")
os.makedirs(folder, exist_ok=True)
from torch.utils.file_baton import FileBaton
baton = FileBaton(os.path.join(folder, "lock"))
if not baton.try_acquire():
    sys.exit(7)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
baton.release()
"""


def test_the_lock_of_a_worker_that_was_killed_while_it_built_an_extension_is_removed(tmp_path: Path) -> None:
    own, named = tmp_path / "own", tmp_path / "named"
    script = tmp_path / "builds.py"
    script.write_text(KILLED_IN_A_BUILD)
    facts: dict[str, Any] = {"script": str(script), "extensions": str(own)}
    killed, built, waits = ends(
        task(tmp_path, **facts),
        task(tmp_path, attempt=1, **facts),
        task(tmp_path, attempt=2, script=str(script), env={"TORCH_EXTENSIONS_DIR": str(lock_in(named))}),
    )
    assert killed[-1]["failures"][0]["exit_code"] == -9 and built[-1]["ok"]
    (problem,) = [report["what"] for report in waits if report["event"] == "problem"]
    assert problem.startswith(f"{named}/fused/lock is there: if no process builds this extension")
    assert waits[-1]["failures"][0]["exit_code"] == 7


def lock_in(directory: Path) -> Path:
    (directory / "fused").mkdir(parents=True)
    (directory / "fused" / "lock").touch()
    return directory
