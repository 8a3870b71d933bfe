"""The command line: what a user reads, from a job's folder as a supervisor leaves it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import click
import pytest
from rich.console import Console

from ckpt.agent.process.launch import PYTHON
from launcher.cli import main
from launcher.cli.errors import Complaints
from launcher.cli.folder_watch import FolderWatch
from launcher.cli.progress import follow
from launcher.core.outcomes import FINAL
from launcher.errors import LauncherError, UsageError
from launcher.history.status import JobStatus
from launcher.job.jobfile import JobSpec, load_job
from launcher.job.registry import KnownJob, known_jobs, remember
from launcher.job.supervisor_process import Process
from launcher.submission.logs import Selection, follow_logs

EVENTS = [
    {"time": 100.0, "event": "job_start", "run_id": "local-7", "nodes_requested": 2, "spares": 1, "cluster": "local"},
    {
        "time": 101.0,
        "event": "attempt_start",
        "attempt": 0,
        "nodes": ["node0", "node1"],
        "spares": ["node2"],
        "rung": "start",
    },
    {"time": 105.0, "event": "first_step", "attempt": 0, "step": 1, "seconds": 4.0},
    {"time": 110.0, "event": "commit", "attempt": 0, "step": 10, "tier": "memory", "seconds": 0.1},
    {
        "time": 111.0,
        "event": "fault",
        "attempt": 0,
        "node": "node1",
        "kind": "node_lost",
        "reason": "silent",
        "step": 11,
    },
    {"time": 111.0, "event": "node_out", "attempt": 0, "node": "node1", "reason": "silent"},
    {"time": 112.0, "event": "attempt_start", "attempt": 1, "nodes": ["node0", "node2"], "spares": [], "rung": "spare"},
]
END = {"time": 120.0, "event": "job_end", "outcome": "done", "step": 20, "seconds": 20.0}
ROOT = Path(__file__).resolve().parents[2]
GOLDEN_SCRIPT = """\
#!/bin/bash
#SBATCH --account=team
#SBATCH --error={cwd}/runs/%j/%j_0_log.err
#SBATCH --exclusive
#SBATCH --gpus-per-node=8
#SBATCH --job-name=gpt
#SBATCH --no-kill
#SBATCH --nodes=5
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output={cwd}/runs/%j/%j_0_log.out
#SBATCH --requeue
#SBATCH --signal=B:USR2@90
#SBATCH --time=1-0
trap '' USR1 USR2
if [ "${{SLURM_RESTART_COUNT:-0}}" != 0 ] && ! {python} -c 'import launcher.submission.batch'; then
    trap '' TERM
    excluded=$(scontrol show job --oneliner "$SLURM_JOB_ID" | sed -n 's/.* ExcNodeList=\\([^ (][^ ]*\\).*/\\1,/p')
    scontrol requeue "$SLURM_JOB_ID" &&
        exec scontrol update "JobId=$SLURM_JOB_ID" "ExcNodeList=$excluded$SLURMD_NODENAME"
fi
exec {python} -u -m launcher.submission.batch slurm {cwd}/runs/%j
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def job(home: Path) -> KnownJob:
    """A job on the local cluster in its second attempt."""
    folder = home / "runs" / "7"
    for attempt, ranks in ((0, 4), (1, 4)):
        logs = folder / "log" / f"attempt-{attempt}"
        logs.mkdir(parents=True)
        for rank in range(ranks):
            (logs / f"rank-{rank}.log").write_text(f"attempt {attempt} rank {rank}\nlast line of rank {rank}\n")
    (folder / "log" / "runner-node2.log").write_text("runner of node2\n")
    (folder / "log" / "supervisor.log").write_text("supervisor says\n")
    (folder / "job.json").write_text(json.dumps({"name": "gpt", "workers_per_node": 2, "nodes": 2, "spares": 1}))
    write_events(folder, EVENTS)
    known = KnownJob(job_id="7", name="gpt", cluster="local", folder=folder, nodes=2, spares=1)
    remember(known)
    return known


def write_events(folder: Path, events: list[dict[str, Any]]) -> None:
    with (folder / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def test_a_dry_run_prints_exactly_what_sbatch_would_get(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "train.py").write_text("")
    (home / "job.yaml").write_text(
        "name: gpt\nscript: train.py\nnodes: 4\nspares: 1\ngpus_per_node: 8\ntime: 1-0\n"
        "slurm: {account: team, exclusive: true}\n"
    )
    assert main(["submit", "job.yaml", "--dry-run", "-p", "train", "--comment=a b"]) == 0
    out, err = capsys.readouterr()
    assert out == GOLDEN_SCRIPT.format(cwd=home, python=shlex.join(PYTHON))
    assert err == "# submitted by: sbatch -p train '--comment=a b' SCRIPT\n"
    assert not (home / "runs").exists()


def test_sbatchs_own_notations_reach_sbatch_as_they_stand(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {
        "time": "1:00:00", "time-min": "30:00", "mem": "012", "partition": "on", "account": "0x10", "qos": "1e3",
        "begin": "2026-11-22", "nodelist": "node[01-04,07]", "comment": "1_000", "mcs-label": "no", "priority": "+5",
        "dependency": "afterok:12:0013", "constraint": "2.10", "licenses": "a:1,b:2", "nice": "0o17",
    }  # fmt: skip
    (home / "train.py").write_text("")
    written = "".join(f"  {option}: {value}\n" for option, value in options.items())
    (home / "job.yaml").write_text(f"script: train.py\nargs: [1:30, 007, 2.10, on]\nslurm:\n{written}")
    script = said(capsys, "submit", "job.yaml", "--dry-run")
    lines = {line.removeprefix("#SBATCH --") for line in script.splitlines()}
    assert {f"{option}={shlex.quote(value)}" for option, value in options.items()} <= lines
    assert load_job(home / "job.yaml").args == ("1:30", "007", "2.10", "on")


@pytest.mark.parametrize("limit", ["90", "30:00", "1:00:00", "36:00:00", "2-12", "2-12:30", "1-00:00:00", "UNLIMITED"])
def test_a_time_limit_reaches_sbatch_as_it_stands(home: Path, capsys: pytest.CaptureFixture[str], limit: str) -> None:
    (home / "train.py").write_text("")
    (home / "job.yaml").write_text(f"script: train.py\ntime: {limit}\n")
    assert f"#SBATCH --time={limit}\n" in said(capsys, "submit", "job.yaml", "--dry-run")


def test_gpus_asked_for_on_the_command_line_get_a_worker_each(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with the job file's key; a job file that names its number of workers keeps it."""
    (home / "train.py").write_text("")
    (home / "job.yaml").write_text("script: train.py\n")
    assert "#SBATCH --gpus-per-node=4\n" in said(capsys, "submit", "job.yaml", "--dry-run", "--gpus-per-node=4")

    specs: list[JobSpec] = []
    monkeypatch.setattr(
        "launcher.clusters.slurm.submission.sbatch_script", lambda spec, *_: specs.append(spec) or ("", [])
    )
    said(capsys, "submit", "job.yaml", "--dry-run", "--gpus-per-node=4")
    (home / "job.yaml").write_text("script: train.py\nworkers_per_node: 1\n")
    said(capsys, "submit", "job.yaml", "--dry-run", "--gpus-per-node=4")
    assert [(spec.gpus_per_node, spec.workers_per_node) for spec in specs] == [(4, 4), (4, 1)]


@pytest.mark.parametrize(
    ("keys", "flags", "lines"),
    [
        ("gpus_per_node: a100:8", [], ["gpus-per-node=a100:8"]),
        ("slurm: {gres: gpu:a100:8}", [], ["gres=gpu:a100:8"]),
        ("gpus_per_node: 4", ["--gpus-per-node=a100:8"], ["gpus-per-node=a100:8"]),
        ("gpus_per_node: 4", ["--gres=gpu:8"], ["gres=gpu:8"]),  # else Slurm is asked for both
        ("slurm: {gres: gpu:4}", ["--gres", "gpu:8"], ["gres=gpu:8"]),
        ("gpus_per_node: 8", ["--gres=lustre:1"], ["gpus-per-node=8", "gres=lustre:1"]),
    ],
)
def test_gpus_of_one_type_and_by_gres_reach_slurm_once_and_get_a_worker_each(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    keys: str, flags: list[str], lines: list[str],
) -> None:  # fmt: skip
    (home / "train.py").write_text("")
    (home / "job.yaml").write_text(f"script: train.py\n{keys}\n")
    script = said(capsys, "submit", "job.yaml", "--dry-run", *flags)
    assert [line[10:] for line in script.splitlines() if line.startswith(("#SBATCH --gpu", "#SBATCH --gres"))] == lines
    specs: list[JobSpec] = []
    monkeypatch.setattr(
        "launcher.clusters.slurm.submission.sbatch_script", lambda spec, *_: specs.append(spec) or ("", [])
    )
    said(capsys, "submit", "job.yaml", "--dry-run", *flags)
    assert [spec.workers_per_node for spec in specs] == [8]


def test_options_of_the_nodes_reach_boosters_from_the_command_line_and_those_of_the_queue_do_not(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    elastic = "elastic: {min_nodes: 2, max_nodes: 4, booster: {partition: boost, time: 60}}\n"
    (home / "train.py").write_text("")
    (home / "job.yaml").write_text(f"script: train.py\nnodes: 2\n{elastic}slurm: {{mem: 8G, account: old}}\n")
    for_nodes = ["-A", "team", "--exclusive", "-Cib", "--mem=16G", "-c", "4", "-x", "n[7-8]"]
    for_queue = ["-p", "base", "-t", "1-0", "-q", "high", "--nice=5", "--dependency=singleton"]
    specs: list[JobSpec] = []
    monkeypatch.setattr(
        "launcher.clusters.slurm.submission.sbatch_script", lambda spec, *_: specs.append(spec) or ("", [])
    )
    said(capsys, "submit", "job.yaml", "--dry-run", *for_queue, *for_nodes)
    (spec,) = specs
    wanted = {"account": "team", "exclusive": True, "constraint": "ib", "mem": "16G", "cpus-per-task": "4"}
    assert spec.booster_options == {"partition": "boost", "time": "60", **wanted}
    assert spec.slurm["exclude"] == "n[7-8]"


@pytest.mark.parametrize(
    "words",
    [[], ["run"], ["submit"], ["status"], ["logs"], ["cancel"], ["cluster"], ["cluster", "up"]],
    ids=lambda words: " ".join(words) or "holdfast",
)
def test_every_verb_explains_itself(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "Usage: holdfast" in said(capsys, *words, "--help")


@pytest.mark.parametrize("verb", ["run", "submit", "wait"])
def test_help_tells_every_exit_code_of_a_job(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    help_text = " ".join(said(capsys, verb, "--help").split())
    own = [f"{outcome.exit_code} {outcome.words}" for outcome in FINAL if outcome.exit_code > 1]
    assert ", ".join(own) in help_text
    assert "0 done" in help_text and "1 internal error" in help_text


def test_help_imports_none_of_the_parts() -> None:
    heavy = ("torch", "mpi4py", "submitit", "yaml", "ckpt.cli.app", "slurm.testbed")
    code = (
        "import sys; from launcher.cli import main; code = main(['--help']);"
        f"print([m for m in {heavy!r} if m in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stderr.strip() == "[]"


def test_status_shows_a_job_by_id_name_or_folder(job: KnownJob, capsys: pytest.CaptureFixture[str]) -> None:
    for reference in ("7", "gpt", "runs/7", str(job.folder)):
        shown = said(capsys, "status", reference)
        for expected in ("recovering", "node0 node2", "node1  silent", "memory 10", "node_lost on node1 at step 11"):
            assert expected in shown


def test_status_as_json_carries_every_fact(job: KnownJob, capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(said(capsys, "status", "7", "--json"))
    assert facts["job"]["folder"] == str(job.folder)
    assert facts["nodes"] == ["node0", "node2"] and facts["out"] == {"node1": "silent"}
    assert facts["committed"] == {"memory": 10} and facts["attempt"] == 1


def test_status_without_a_job_lists_all(job: KnownJob, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "status")
    assert "recovering" in out and "runs/7" in out
    (fact,) = json.loads(said(capsys, "status", "--json"))
    assert (fact["job_id"], fact["name"], fact["state"], fact["step"]) == ("7", "gpt", "recovering", 11)


def test_status_lists_jobs_of_sbatch_scripts_too(job: KnownJob, capsys: pytest.CaptureFixture[str]) -> None:
    scripted = job.folder.with_name("8")
    scripted.mkdir()
    write_events(scripted, [EVENTS[0] | {"run_id": "slurm-c-8", "cluster": "slurm", "time": 90.0}, END])
    job.folder.with_name("notes").mkdir()
    facts = json.loads(said(capsys, "status", "--json"))
    assert [(fact["job_id"], fact["cluster"], fact["state"]) for fact in facts] == [
        ("7", "local", "recovering"),
        ("8", "slurm", "done"),
    ]


def noted(home: Path, job_id: str, submitted_s: float, state: str = "done") -> KnownJob:
    folder = home / "runs" / job_id
    folder.mkdir(parents=True)
    write_events(folder, [*EVENTS, *([END | {"outcome": state}] if state != "recovering" else [])])
    known = KnownJob(
        job_id=job_id, name="gpt", cluster="local", folder=folder, nodes=2, spares=1, submitted_s=submitted_s
    )
    remember(known)
    return known


def test_the_list_has_the_newest_first_with_age_and_nodes_up_to_a_limit(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = time.time()
    for number in range(23):
        noted(home, f"job-{number:02}", now_s - 3600 * (2 + number), "cancelled" if number == 21 else "done")
    heading, *rows, foot = said(capsys, "status").splitlines()
    assert heading.split() == ["job", "name", "cluster", "state", "step", "nodes", "age", "folder"]
    assert [row.split()[0] for row in rows] == [f"job-{number:02}" for number in range(20)]
    assert rows[0].split() == ["job-00", "gpt", "local", "done", "20", "2", "2", "h", "runs/job-00"]
    assert foot == "the newest 20 of 23 jobs; --limit 0 lists all"
    assert len(said(capsys, "status", "--limit", "0").splitlines()) == 24
    assert [row.split()[0] for row in said(capsys, "status", "--limit", "1").splitlines()[1:2]] == ["job-00"]
    assert len(json.loads(said(capsys, "status", "--json"))) == 23
    (fact,) = json.loads(said(capsys, "status", "--json", "--state", "cancelled"))
    assert fact["job_id"] == "job-21"
    assert said(capsys, "status", "--state", "training") == "none of 23 jobs is training\n"
    assert main(["status", "--state", "dead"]) == 2 and "expected one of pending" in capsys.readouterr().err


def test_a_part_of_an_id_is_enough_if_no_other_job_has_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noted(home, "20261128-032012-9ab9", 1.0)
    noted(home, "20261128-040000-77aa", 2.0)
    noted(home, "1234", 3.0)
    for part in ("20261128-032", "9ab9"):
        assert json.loads(said(capsys, "status", part, "--json"))["job"]["job_id"] == "20261128-032012-9ab9"
    assert main(["status", "20261128"]) == 2
    assert "2 have it in their ids: 20261128-040000-77aa, 20261128-032012-9ab9" in capsys.readouterr().err
    assert main(["cancel", "12"]) == 2, "another Slurm job may have this number"
    assert "no job '12'" in capsys.readouterr().err


def completed(words: str) -> list[str]:
    env = {
        **os.environ,
        "_HOLDFAST_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    command = [sys.executable, "-c", "from launcher.cli.app import app; app(prog_name='holdfast')"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout.split()


def test_tab_completes_jobs_and_values(job: KnownJob, home: Path) -> None:
    noted(home, "20261128-032012-9ab9", 1.0)
    for verb in ("status", "logs", "wait", "scale", "stop", "cancel"):
        assert completed(f"holdfast {verb} ") == ["7", "20261128-032012-9ab9", "gpt"]
    assert completed("holdfast logs 2026") == ["20261128-032012-9ab9"]
    assert completed("holdfast logs 7 --node ") == ["node0", "node2"]
    assert completed("holdfast logs 7 --rank ") == ["all", "0", "1", "2", "3"]
    assert completed("holdfast logs 7 --attempt ") == ["newest", "0", "1"]
    assert completed("holdfast status --state d") == ["done"]
    assert completed("holdfast submit --cluster ") == ["slurm", "local"]
    assert completed("holdfast node check --level ") == ["prolog", "quick", "deep"]
    assert "zombies" in completed("holdfast node check --only zom")
    assert completed("holdfast logs nosuch --node ") == [], "an error completes nothing"


@pytest.mark.parametrize(("outcome", "code"), [("done", 0), ("halted", 0), ("user_error", 10), ("cancelled", 13)])
def test_wait_ends_with_the_jobs_exit_code(
    job: KnownJob, outcome: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = threading.Timer(0.7, write_events, (job.folder, [END | {"outcome": outcome, "reason": "as it is"}]))
    ended.start()
    assert main(["wait", "7"]) == code
    assert capsys.readouterr().out == f"job 7: {outcome} at step 20: as it is\n"
    assert main(["wait", "7", "--json"]) == code
    facts = json.loads(capsys.readouterr().out)
    assert (facts["job_id"], facts["state"], facts["exit_code"]) == ("7", outcome, code)


def test_wait_for_a_job_whose_supervisor_is_gone_fails(job: KnownJob, capsys: pytest.CaptureFixture[str]) -> None:
    process = subprocess.Popen(["true"])
    Process.of_pid(process.pid).save(job.folder)
    process.wait()
    assert main(["wait", "7"]) == 1
    assert "job 7: lost at step 11: its supervisor is gone" in capsys.readouterr().out


def test_stop_and_cancel_and_init_print_json(job: KnownJob, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_events(job.folder, [END])
    for verb in ("stop", "cancel"):
        facts = json.loads(said(capsys, verb, "7", "--json"))
        assert facts["job_id"] == "7" and facts["message"] == "job 7 has ended already (done)"
    facts = json.loads(said(capsys, "init", "new", "--json"))
    assert facts["directory"] == str(home / "new") and "job.yaml" in facts["files"]


def followed(job: KnownJob, **options: bool) -> str:
    """What `run` prints of a job with an end."""
    (job.folder / "result.json").write_text(
        json.dumps({"name": "done", "step": 20, "exit_code": 0, "reason": "", "seconds": 1.0})
    )
    write_events(job.folder, [END])
    out = io.StringIO()
    assert follow(job, Console(file=out, width=200), **options) == 0
    return out.getvalue()


def test_run_shows_the_lines_of_rank_0_beside_the_events(job: KnownJob) -> None:
    log = job.folder / "log" / "attempt-1" / "rank-0.log"
    log.write_text("10%\r20%\rloss 2.5\nINFO saved step 5 to memory: 3 bytes\n\x1b[2Jtraced\nthe last word")
    process = subprocess.Popen(["sleep", "60"])
    Process.of_pid(process.pid).save(job.folder)
    threading.Timer(1.0, process.kill).start()
    threading.Thread(target=process.wait).start()
    lines = followed(job).splitlines()
    assert "[rank 0] loss 2.5" in lines and "[rank 0] \\x1b[2Jtraced" in lines
    assert not any("saved step" in line for line in lines), "the status has it"
    assert lines[-2] == "[rank 0] the last word"
    assert any("node_lost on node1" in line for line in lines) and lines[-1].startswith("done at step 20")


def test_run_says_that_the_jobs_folder_is_gone_and_how_the_job_has_ended(
    job: KnownJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.cli.folder_watch._LOOK_S", 0.0)
    process = subprocess.Popen(["sleep", "60"])
    Process.of_pid(process.pid).save(job.folder)
    out = io.StringIO()

    def remove() -> None:
        shutil.rmtree(job.folder)
        wait_until(lambda: "is gone" in out.getvalue())
        process.kill()
        process.wait()

    threading.Timer(0.5, remove).start()
    with pytest.raises(LauncherError, match=r"job 7: ended, because .* was removed while it ran; start it again"):
        follow(job, Console(file=out, width=200))
    assert out.getvalue().count(f"{job.folder} is gone. If it was removed, the job ends; its steps stay") == 1


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a file system needs root")
def test_a_folder_that_is_full_is_told_once_and_that_it_can_be_written_again(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], check=True)
    try:
        now_s = 0.0
        watch = FolderWatch(tmp_path, lambda: now_s)

        def looks() -> list[str | None]:
            nonlocal now_s
            found = []
            for _ in range(4):
                now_s += 2.5
                found.append(watch.news())
            return found

        assert looks() == [None] * 4
        with (tmp_path / "fill").open("wb", buffering=0) as fill, contextlib.suppress(OSError):
            while True:
                fill.write(bytes(4096))
        first, *rest = looks()
        assert first is not None and rest == [None] * 3
        assert first.startswith(f"{tmp_path} cannot be written (No space left on device). The job goes on")
        (tmp_path / "fill").unlink()
        assert looks() == [f"{tmp_path} can be written again: what the job has reported meanwhile follows", *rest]
        assert not list(tmp_path.iterdir())
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def test_run_shows_no_lines_of_rank_0_if_asked(job: KnownJob) -> None:
    assert "rank 0" not in followed(job, shows_output=False)


def test_run_as_json_is_an_event_a_line(job: KnownJob) -> None:
    first, *events = map(json.loads, followed(job, as_json=True).splitlines())
    assert (first["event"], first["job_id"], first["folder"]) == ("submitted", "7", str(job.folder))
    assert [event["event"] for event in events] == [*(event["event"] for event in EVENTS), "job_end"]


def test_what_goes_into_a_pipe_has_no_blanks_at_its_lines_ends(
    job: KnownJob, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["status"], ["status", "7"]):
        lines = said(capsys, *words).splitlines()
        assert lines == [line.rstrip() for line in lines]


def test_a_run_whose_saves_reached_no_tier_says_so_at_its_end(job: KnownJob) -> None:
    lost = {"time": 119.0, "event": "problem", "what": "flush failed", "attempt": 1, "step": 20, "failed": "shared"}
    write_events(job.folder, [lost, END])
    (job.folder / "result.json").write_text(
        json.dumps({"name": "done", "step": 20, "exit_code": 0, "reason": "", "seconds": 1.0})
    )
    console = Console(width=200, record=True, quiet=False, file=open(os.devnull, "w"))  # noqa: SIM115
    assert follow(job, console) == 0
    assert "done at step 20 after 00:00:20, 1 fault survived, 1 save failed" in console.export_text()


def test_control_characters_in_an_error_of_the_script_do_not_reach_the_terminal(
    job: KnownJob, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "ValueError: \x1b[31mred\x1b[0m \x00 nul"
    fault = {"time": 119.0, "event": "fault", "kind": "user_error", "attempt": 1, "rank": 0, "reason": reason}
    write_events(job.folder, [fault, {**END, "outcome": "user_error", "reason": reason}])
    result = {"name": "user_error", "step": 20, "exit_code": 10, "reason": f"{reason}\n  line", "seconds": 1.0}
    (job.folder / "result.json").write_text(json.dumps(result))
    out = io.StringIO()
    assert follow(job, Console(file=out, width=200)) == 10
    err = capsys.readouterr().err
    assert err.splitlines()[:2] == ["ValueError: \\x1b[31mred\\x1b[0m \\x00 nul", "  line"]
    assert "\\x1b[31mred" in out.getvalue() and not {"\x1b", "\x00"} & {*out.getvalue(), *err}


def test_that_a_job_is_cancelled_is_told_even_if_the_live_line_cannot_begin(
    job: KnownJob, capsys: pytest.CaptureFixture[str]
) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            if "starting" in text:
                raise SystemExit(1)  # as rich makes of a closed pipe
            return len(text)

    process = subprocess.Popen(["sleep", "60"])
    Process.of_pid(process.pid).save(job.folder)
    with pytest.raises(SystemExit):
        follow(job, Console(file=Closed(), force_terminal=True))
    assert process.wait() == -signal.SIGINT
    assert "cancelling job 7" in capsys.readouterr().err


@pytest.mark.parametrize("outcome", FINAL)
def test_every_outcome_is_the_ended_jobs_state(job: KnownJob, outcome: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_events(job.folder, [END | {"outcome": outcome}])
    process = subprocess.Popen(["true"])
    Process.of_pid(process.pid).save(job.folder)
    process.wait()
    assert json.loads(said(capsys, "status", "7", "--json"))["state"] == outcome
    assert said(capsys, "cancel", "7") == f"job 7 has ended already ({outcome})\n"


def test_an_error_of_the_system_names_its_file_first(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "a" * 300]) == 1
    assert capsys.readouterr().err == f"holdfast: error: {'a' * 300}/job.json: File name too long\n"


def test_a_job_found_by_its_folder_alone_needs_no_note(
    job: KnownJob, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/nonexistent")
    assert json.loads(said(capsys, "status", "7", "--json"))["job"]["name"] == "gpt"


def test_a_vanished_folder_drops_out_of_the_list(job: KnownJob) -> None:
    job.folder.rename(job.folder.with_name("gone"))
    assert known_jobs() == []


def test_a_job_whose_supervisor_was_killed_is_lost(job: KnownJob, capsys: pytest.CaptureFixture[str]) -> None:
    process = subprocess.Popen(["sleep", "60"])
    Process.of_pid(process.pid).save(job.folder)
    assert json.loads(said(capsys, "status", "7", "--json"))["state"] == "recovering"
    process.kill()
    process.wait()
    facts = json.loads(said(capsys, "status", "7", "--json"))
    assert facts["state"] == "lost" and "supervisor says" in facts["reason"]


def test_another_process_with_the_same_number_is_not_the_supervisor(job: KnownJob) -> None:
    ours = Process.of_pid(os.getpid())
    assert ours.alive()
    assert not Process(pid=ours.pid, start_ticks=ours.start_ticks + 1, host=ours.host).alive()


def test_cancel_interrupts_the_supervisor_and_waits_for_its_end(
    job: KnownJob, capsys: pytest.CaptureFixture[str]
) -> None:
    process = subprocess.Popen(["env", "--default-signal=INT", "sleep", "60"])  # a background shell has it ignored
    wait_until(lambda: b"sleep" in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")[0])
    reaper = threading.Thread(target=process.wait)
    reaper.start()
    Process.of_pid(process.pid).save(job.folder)
    assert said(capsys, "cancel", "7") == "job 7 cancelled\n"
    reaper.join()
    assert process.returncode == -signal.SIGINT


def test_an_ended_job_needs_no_cancelling(job: KnownJob, capsys: pytest.CaptureFixture[str]) -> None:
    write_events(job.folder, [END])
    assert said(capsys, "cancel", "7") == "job 7 has ended already (done)\n"


def test_logs_are_rank_0_of_all_attempts_unless_told_otherwise(
    job: KnownJob, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = "attempt 1 rank 0\nlast line of rank 0\n"
    assert said(capsys, "logs", "7") == f"attempt 0 rank 0\nlast line of rank 0\n--- attempt 1 ---\n{newest}"
    assert said(capsys, "logs", "7", "--attempt", "newest") == newest
    last = "last line of rank 0\n--- attempt 1 ---\n"
    assert said(capsys, "logs", "7", "-n", "3") == last + newest, "over all attempts"
    assert said(capsys, "logs", "7", "--rank", "2", "-n", "1") == "last line of rank 2\n"
    assert said(capsys, "logs", "7", "--attempt", "0", "--rank", "3").startswith("attempt 0 rank 3\n")
    assert said(capsys, "logs", "7", "--supervisor") == "supervisor says\n"


def test_logs_of_all_ranks_name_each(job: KnownJob, capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "logs", "7", "--rank", "all", "-n", "1").splitlines()
    assert lines == [f"[rank {rank}] last line of rank {rank}" for rank in range(4)]
    lines = said(capsys, "logs", "7", "--rank", "all").splitlines()
    assert lines[:2] == ["[rank 0] attempt 0 rank 0", "[rank 0] last line of rank 0"]
    assert lines[8:10] == ["--- attempt 1 ---", "[rank 0] attempt 1 rank 0"] and len(lines) == 17


def test_logs_as_json_are_an_object_a_line(job: KnownJob, capsys: pytest.CaptureFixture[str]) -> None:
    facts = [json.loads(line) for line in said(capsys, "logs", "7", "--node", "node2", "--json", "-n1").splitlines()]
    assert facts[0] == {"source": "rank", "attempt": 1, "rank": 2, "node": None, "line": "last line of rank 2"}
    assert facts[-1] == {"source": "runner", "attempt": None, "rank": None, "node": "node2", "line": "runner of node2"}


def test_logs_of_a_node_in_an_earlier_attempt_are_found_by_the_attempts_nodes(
    job: KnownJob, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = said(capsys, "logs", "7", "--node", "node0").splitlines()
    assert lines[0] == "[rank 0] attempt 0 rank 0" and "[rank 1] attempt 1 rank 1" in lines
    assert not any("rank 2" in line for line in lines)


def test_logs_of_a_node_are_those_of_its_workers_and_its_runner(
    job: KnownJob, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = said(capsys, "logs", "7", "--node", "node2").splitlines()
    assert lines == [
        "[rank 2] attempt 1 rank 2",
        "[rank 2] last line of rank 2",
        "[rank 3] attempt 1 rank 3",
        "[rank 3] last line of rank 3",
        "[node2 runner] runner of node2",
    ]
    assert said(capsys, "logs", "7", "--node", "node1", "--attempt", "0").startswith("[rank 2] attempt 0 rank 2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rank", "9"], "rank: got 9, expected one with a log in"),
        (["--node", "node1", "--attempt", "1"], "node: got node1, expected one of attempt 1: node0, node2"),
        (["--node", "nodeX"], "node: got nodeX, expected one of attempt 1: node0, node2"),
        (["--attempt", "first"], "--attempt: got 'first', expected a number or newest"),
        (["--rank", "every"], "--rank: got 'every', expected a number or all"),
        (["--node", "node2", "--rank", "0"], "rank: got 0, expected one of node node2: 2 to 3"),
        (["--attempt", "5"], "attempt: got 5, expected one of 0, 1"),
        (["-n", "-1"], "--lines: got -1, expected 0 or more"),
    ],
)
def test_logs_that_are_not_there_are_a_usage_error(
    job: KnownJob, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", "7", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_following_logs_goes_over_to_the_next_attempt_and_ends_with_the_job(job: KnownJob) -> None:
    lines: list[str] = []
    ended = threading.Event()
    notes: list[str] = []

    def now() -> JobStatus:
        return JobStatus(state="done" if ended.is_set() else "training")

    arguments = (job.folder, Selection(rank=0), 1, lambda _, line: lines.append(line), now, notes.append)
    follower = threading.Thread(target=follow_logs, args=arguments)
    follower.start()
    wait_until(lambda: lines == ["last line of rank 0"])
    with (job.folder / "log" / "attempt-1" / "rank-0.log").open("a") as file:
        file.write("more\nhalf a li")
        file.flush()
        wait_until(lambda: lines[-1] == "more")
        file.write("ne\n")
    wait_until(lambda: lines[-1] == "half a line")
    (job.folder / "log" / "attempt-2").mkdir()
    (job.folder / "log" / "attempt-2" / "rank-0.log").write_text("second\n")
    wait_until(lambda: lines[-1] == "second")
    ended.set()
    follower.join(timeout=10)
    assert not follower.is_alive() and notes == []


def test_following_a_job_that_has_written_nothing_tells_once_what_it_does(home: Path) -> None:
    stands = [JobStatus(reason="waits in the queue: Priority")] * 2 + [
        JobStatus(state="starting"),
        JobStatus(state="cancelled"),
    ]
    notes: list[str] = []
    with pytest.raises(UsageError, match="no attempt has begun"):
        follow_logs(home, Selection(), None, lambda _, line: print(line), lambda: stands.pop(0), notes.append)
    assert [note.partition("the job is ")[2] for note in notes] == [
        "pending, waits in the queue: Priority",
        "starting",
        "cancelled",
    ]


def test_logs_that_nobody_has_written_yet_are_said_to_be_so(job: KnownJob, capsys: pytest.CaptureFixture[str]) -> None:
    (job.folder / "log" / "attempt-2").mkdir()
    assert main(["logs", "7", "--attempt", "2"]) == 2
    assert "no worker has written anything; `holdfast status" in capsys.readouterr().err
    (job.folder / "log" / "supervisor.log").unlink()
    assert main(["logs", "7", "--supervisor"]) == 2
    assert "no supervisor has started" in capsys.readouterr().err


def wait_until(condition: Any, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_job_that_cannot_be_noted_is_known_by_its_folder(
    job: KnownJob, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    remember(job)
    assert f"not written (Not a directory): name the job by its folder, {job.folder}" in caplog.text


def test_a_job_of_a_user_without_a_home_is_known_by_its_folder(
    job: KnownJob, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_entry(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", no_entry)
    remember(job)
    assert f"not written (the user has no home directory): name the job by its folder, {job.folder}" in caplog.text
    assert known_jobs() == []
    assert json.loads(said(capsys, "status", "7", "--json"))["job"]["name"] == "gpt"


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt, 130), (EOFError, None)])
def test_only_an_interrupt_is_said_to_be_one(raised: type[BaseException], code: int | None) -> None:
    """Click raises Abort for both. Torch raises EOFError for files that are cut off."""
    abort = click.exceptions.Abort()
    abort.__cause__ = raised()
    assert Complaints([]).of(abort) == code
