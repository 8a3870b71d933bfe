"""`holdfast doctor`: what it says of settings, of a node's answer, and of this machine."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from launcher.cli import main
from launcher.clusters.slurm.scheduler import SlurmScheduler
from launcher.doctor.examination import examine
from launcher.doctor.node import finding_of, judge_disk
from launcher.doctor.page import page, verdict
from launcher.doctor.slurm_settings import judge_export, judge_settings
from launcher.job.jobfile import JobSpec
from lifecycle import Finding, Status
from slurm import Slurm
from slurm.command import CommandError, Result

RECORDED = Path(__file__).parents[1] / "test_slurm" / "recorded" / "config.txt"
PARTITIONS = """\
PartitionName=train Default=YES GraceTime=0 Nodes=n[1-4] PriorityTier=5 PreemptMode=REQUEUE State=UP
PartitionName=base Default=NO GraceTime=0 Nodes=n[1-4] PriorityTier=5 PreemptMode=OFF State=UP
PartitionName=urgent Default=NO GraceTime=0 Nodes=n[1-4] PriorityTier=10 PreemptMode=OFF State=UP
PartitionName=boost Default=NO GraceTime=60 Nodes=n[1-4] PriorityTier=1 PreemptMode=REQUEUE State=UP
PartitionName=hasty Default=NO GraceTime=0 Nodes=n[1-4] PriorityTier=1 PreemptMode=CANCEL State=UP
"""


class FakeSlurm:
    """Answers as Slurm's commands do; the step's program answers as `node` says.

    Args:
        config: what `scontrol show config` prints.
        mpi: what `srun --mpi=list` prints.
        node: changes to the node's answer; None has no node free.
    """

    def __init__(self, config: str, mpi: str = "MPI plugin types are...\n\tpmix\n", node: Any = ()) -> None:
        self.config, self.mpi, self.node = config, mpi, node
        self.steps: list[list[str]] = []

    def __call__(self, argv: Sequence[str], **options: Any) -> Result:
        argv = [str(word) for word in argv]
        result = Result(argv=tuple(argv), returncode=0, stdout="", stderr="", seconds=1.0)
        if argv[:3] == ["scontrol", "show", "partition"]:
            return self._with(result, stdout=PARTITIONS)
        if argv[0] == "scontrol":
            return self._with(result, stdout=self.config)
        if argv == ["srun", "--mpi=list"]:
            return self._with(result, stderr=self.mpi)
        self.steps.append(argv)
        if self.node is None:
            failed = self._with(result, returncode=1, stderr="srun: error: Unable to allocate resources: busy")
            raise CommandError(failed, "exit code 1")
        request = json.loads(argv[-1])
        facts = {"host": "n1", "time_s": time.time(), "seen": request["markers"], "has_pmix": True, "findings": []}
        facts["filter_refused"] = ""
        for marker in request["markers"]:
            Path(marker).with_suffix(".seen").touch()
        return self._with(result, stdout=f"a site's banner\n{json.dumps(facts | dict(self.node))}\n")

    @staticmethod
    def _with(result: Result, **changes: Any) -> Result:
        return Result(**{**vars(result), **changes})


def config(**changes: str) -> str:
    text = RECORDED.read_text()
    for name, value in changes.items():
        text, count = re.subn(rf"^{name}\s*=.*$", f"{name} = {value}", text, flags=re.MULTILINE)
        assert count == 1, name
    return text


def settings(**changes: str) -> dict[str, Finding]:
    found = judge_settings(Slurm(run=FakeSlurm(config(**changes))).config())
    return {finding.check: finding for finding in found}


def of(findings: Sequence[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


@pytest.mark.parametrize(
    ("parameter", "value", "check", "status"),
    [
        ("SLURM_VERSION", "22.05.8", "slurm_version", "ok"),
        ("SLURM_VERSION", "25.11.0-0rc1", "slurm_version", "ok"),
        ("SLURM_VERSION", "21.08.5", "slurm_version", "warning"),
        ("SLURM_VERSION", "devel", "slurm_version", "unknown"),
        ("KillWait", "30 sec", "kill_wait", "ok"),
        ("KillWait", "5 sec", "kill_wait", "warning"),
        ("ReturnToService", "0", "return_to_service", "warning"),
        ("ReturnToService", "1", "return_to_service", "ok"),
        ("SlurmdTimeout", "300 sec", "slurmd_timeout", "ok"),
        ("SlurmdTimeout", "0 sec", "slurmd_timeout", "warning"),
        ("SlurmdTimeout", "3600 sec", "slurmd_timeout", "warning"),
        ("JobRequeue", "0", "requeue", "ok"),
        ("PreemptMode", "OFF", "preempt_mode", "ok"),
        ("PreemptMode", "GANG,SUSPEND", "preempt_mode", "warning"),
        ("KillOnBadExit", "1", "kill_on_bad_exit", "ok"),
        ("ProctrackType", "proctrack/cgroup", "proctrack", "ok"),
        ("ProctrackType", "proctrack/linuxproc", "proctrack", "warning"),
        ("TaskPlugin", "task/affinity,task/cgroup", "task_plugin", "ok"),
        ("TaskPlugin", "task/none", "task_plugin", "warning"),
        ("SelectType", "select/cons_tres", "select_type", "ok"),
        ("SelectType", "select/linear", "select_type", "warning"),
        ("InactiveLimit", "60 sec", "inactive_limit", "warning"),
    ],
)
def test_a_setting_that_harms_a_job_has_a_next_step(parameter: str, value: str, check: str, status: str) -> None:
    finding = settings(**{parameter: value})[check]
    assert finding.status.word == status
    assert bool(finding.advice) is (status == "warning")


def test_a_prolog_has_to_run_before_the_first_step() -> None:
    for flags in ("Alloc", "Contain,X11", "RunInJob", "DeferBatch", "ForceRequeueOnFail"):
        assert settings(Prolog="/x/prolog.sh", PrologFlags=flags)["prolog_flags"].status is Status.OK
    for flags in ("(null)", "Serial", "NoHold"):
        assert settings(Prolog="/x/prolog.sh", PrologFlags=flags)["prolog_flags"].status is Status.WARNING
    assert settings(Prolog="(null)", PrologFlags="(null)")["prolog_flags"].status is Status.OK


@pytest.mark.parametrize(
    ("version", "export", "shell", "status"),
    [
        ("26.05.5", None, "/usr/sbin/nologin", None),
        ("26.05.5", "ALL", "/usr/sbin/nologin", None),
        ("26.05.5", "ALL,X=Y", "/usr/sbin/nologin", "warning"),
        ("25.05.0", "NONE", "/bin/false", "warning"),
        ("26.05.5", "X=Y", "", "warning"),
        ("26.05.5", "ALL,X=Y", "/bin/bash", "ok"),
        ("24.11.5", "ALL,X=Y", "/usr/sbin/nologin", "ok"),
    ],
)
def test_an_environment_that_slurm_cannot_make_is_named_before_it_holds_the_job(
    version: str, export: str | None, shell: str, status: str | None
) -> None:
    found = list(judge_export({"SLURM_VERSION": version}, export, shell))
    assert [row.status.word for row in found] == [status] * (status is not None)


def test_settings_that_slurm_does_not_print_are_no_crash() -> None:
    assert {finding.status for finding in judge_settings({})} <= {Status.OK, Status.WARNING, Status.UNKNOWN}


def test_one_step_on_one_node_is_asked_with_the_jobs_own_options(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    job = {"script": "train.py", "gpus_per_node": 4, "slurm": {"partition": "train", "exclusive": True}}
    slurm = FakeSlurm(config())
    rows = of(examine(JobSpec.from_mapping(job, tmp_path), tmp_path / "runs", SlurmScheduler(), slurm))
    (step,) = slurm.steps
    assert {"--partition=train", "--gpus-per-node=4", "--mpi=pmix", "--immediate=60"} <= {*step}
    fine = ("pmix", "pmix_step", "node", "job_folder", "clock_difference", "rendezvous")
    assert {rows[name].status for name in fine} == {Status.OK}
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("answer", "check", "status"),
    [
        ({"seen": []}, "job_folder", "critical"),
        ({"has_pmix": False}, "pmix_step", "critical"),
        ({"time_s": 0.0}, "clock_difference", "warning"),
        ({"filter_refused": "Operation not permitted", "host": "127.0.0.1"}, "rendezvous", "warning"),
        ({"findings": [{"name": "versions", "status": "critical", "measured": "no torch"}]}, "versions", "critical"),
    ],
)
def test_what_the_node_says_is_judged(answer: dict[str, Any], check: str, status: str, tmp_path: Path) -> None:
    rows = of(examine(None, tmp_path, SlurmScheduler(), FakeSlurm(config(), node=answer)))
    assert rows[check].status.word == status and (rows[check].advice or check == "versions")


@pytest.mark.parametrize(
    ("own", "booster", "expected"),
    [
        ("base", {"partition": "boost"}, {"boosters": "ok", "booster_grace": "ok", "base_partition": "ok"}),
        ("train", {"partition": "hasty"}, {"boosters": "ok", "booster_grace": "warning", "base_partition": "warning"}),
        ("base", {"partition": "urgent"}, {"boosters": "critical"}),
        ("base", {"partition": "bost"}, {"boosters": "critical"}),
        ("base", None, {"boosters": "critical"}),
    ],
)
def test_partitions_are_judged_for_an_elastic_job(
    own: str, booster: Any, expected: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").touch()
    elastic = {"min_nodes": 1, "max_nodes": 2, "booster": booster}
    spec = JobSpec.from_mapping({"script": "train.py", "elastic": elastic, "slurm": {"partition": own}}, tmp_path)
    rows = of(examine(spec, tmp_path, SlurmScheduler(), FakeSlurm(config())))
    found = {name: rows[name].status.word for name in ("boosters", "booster_grace", "base_partition") if name in rows}
    assert found == expected
    assert all(rows[name].advice for name, status in found.items() if status != "ok")


def test_what_an_elastic_job_would_find_is_said_without_one(tmp_path: Path) -> None:
    def boosters(**changes: str) -> Finding:
        return of(examine(None, tmp_path, SlurmScheduler(), FakeSlurm(config(**changes))))["boosters"]

    assert boosters().measured == "train, boost, hasty" and boosters().status is Status.OK
    none = boosters(PreemptType="preempt/none")
    assert "do not grow" in none.measured and "slurm-conf --elastic" in none.advice
    assert boosters(PreemptType="preempt/qos").status is Status.UNKNOWN, "sacctmgr is not asked without accounts"


def test_torchs_rendezvous_is_open_only_where_a_neighbour_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judged(error: OSError) -> Finding:
        def connect(*_: object) -> None:
            raise error

        monkeypatch.setattr("socket.create_connection", connect)
        answer = {"filter_refused": "Operation not permitted"}
        return of(examine(None, tmp_path, SlurmScheduler(), FakeSlurm(config(), node=answer)))["rendezvous"]

    assert judged(ConnectionRefusedError()).status is Status.WARNING, "nothing listens there, but packets arrive"
    assert judged(TimeoutError()).status is Status.OK
    assert judged(PermissionError("a firewall here")).status is Status.OK
    assert judged(socket.gaierror(-2, "Name or service not known")).status is Status.UNKNOWN


def test_no_free_node_and_no_plugin_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_pmix() -> dict[str, Any]:
        slurm = FakeSlurm(config(), mpi="MPI plugin types are...\n\tnone\n\tpmi2\n", node=None)
        return of(examine(None, tmp_path, SlurmScheduler(), slurm))

    assert without_pmix()["pmix"].status is Status.WARNING, "mpirun starts the agents"
    monkeypatch.setattr("launcher.clusters.slurm.findings.find_mpirun", lambda: None)
    rows = without_pmix()
    assert rows["node"].status is Status.UNKNOWN and "Unable to allocate resources" in rows["node"].measured
    assert rows["node"].advice.startswith("try by hand: srun ") and rows["node"].advice.endswith("doctor.node'")
    assert rows["pmix"].status is Status.CRITICAL and "pmi2" in rows["pmix"].measured


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    job = {"script": "train.py", "checkpoint": {"memory": {}, "shared": {"path": "taken"}}}
    (tmp_path / "train.py").write_text("")
    (tmp_path / "taken").write_text("a file")
    slurm = FakeSlurm(config())
    spec = JobSpec.from_mapping(job, tmp_path)
    rows = of(examine(spec, Path("/proc/no"), SlurmScheduler(), slurm))
    assert rows["shared_folder"].status is Status.CRITICAL and "taken: is a file" in rows["shared_folder"].measured
    assert rows["job_folder"].status is Status.CRITICAL


def test_the_nvme_tiers_directory_is_tried_on_the_node_as_the_jobs_user(tmp_path: Path) -> None:
    def row(path: str, **env: str) -> Finding:
        return of([*judge_disk({"nvme": {"path": path}, "namespace": "gpt"}, env)])["nvme_folder"]

    assert row(f"{tmp_path}/holdfast-1000").status is Status.OK and list(tmp_path.iterdir()) == []
    (tmp_path / "taken").write_text("a file")
    refused = row(f"{tmp_path}/taken")
    assert refused.status is Status.CRITICAL and "taken: is a file" in refused.measured and "$UID" in refused.advice
    assert "{path: /local/holdfast-7}" in row(f"{tmp_path}/taken", HOLDFAST_DISK_DIR="/local/holdfast-7").advice
    assert [*judge_disk({"nvme": None, "namespace": "gpt"}, {})] == [*judge_disk(None, {})] == []


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_a_directory_of_root_is_no_place_for_the_nvme_tier() -> None:
    program = (
        "from launcher.doctor.node import judge_disk\n"
        "print(*judge_disk({'nvme': {'path': '/no-such-disk/holdfast'}, 'namespace': 'gpt'}, {}))"
    )
    nobody = {"user": 65534, "group": 65534}
    said = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, **nobody)
    assert "/: is not writable for uid 65534" in said.stdout and "CRITICAL" in said.stdout, said.stderr


def test_this_machine_is_judged_without_slurm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCCL_PROTO", "simple")
    code = main(["doctor", "--cluster", "local", "--json"])
    facts = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in facts["findings"]}
    assert {rows[name]["status"] for name in ("mpirun", "node", "job_folder", "clock_difference")} == {"ok"}
    assert {"memory_file_system", "open_files", "node_check", "versions"} <= rows.keys()
    assert rows["environment"]["status"] != "ok" and "NCCL_PROTO=simple" in rows["environment"]["measured"]
    assert code == (facts["status"] == "critical")
    assert list(tmp_path.iterdir()) == []


def test_the_page_has_the_worst_first_and_the_next_step() -> None:
    rows = [("a", "ok", ""), ("b", "unknown", "ask"), ("c", "critical", "mend [it]"), ("d", "warning", "look")]
    findings = [
        finding_of({"name": name, "status": status, "measured": "m" * 90, "advice": advice})
        for name, status, advice in rows
    ]
    console = Console(width=80, record=True, markup=False, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(page(findings))
    lines = console.export_text().splitlines()
    assert [line.split()[0] for line in lines if re.match(r"[a-z]", line)] == [
        "critical", "warning", "unknown", "ok", "critical:",
    ]  # fmt: skip
    assert any(line.strip() == "next: mend [it]" for line in lines) and max(map(len, lines)) <= 80
    assert verdict(findings) is Status.CRITICAL and verdict([]) is Status.OK
