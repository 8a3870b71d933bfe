"""Bad input, one by one: exit code 2, one line that names the place, and nothing submitted."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.cli import main
from launcher.errors import UsageError
from launcher.job.jobfile import JobSpec


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with a good job file, and a Slurm of two nodes that writes down what it is asked."""
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text("script: train.py\n")
    (tmp_path / "run.sh").write_text("python train.py")
    (tmp_path / "shebang").write_text("#!/usr/bin/env bash\npython train.py")
    (tmp_path / "bad.py").write_text("import os\nimport = 3\n")
    (tmp_path / "outside.py").write_text("return 3\n")
    (tmp_path / "binary").write_bytes(b"x\0y")
    (tmp_path / "pkg").mkdir()
    for name, text in {"__init__.py": "raise SystemExit('imported')", "bad.py": "x =", "train.py": ""}.items():
        (tmp_path / "pkg" / name).write_text(text)
    commands = tmp_path / "bin"
    commands.mkdir()
    answers = {
        "sbatch": f'echo sbatch "$@" >> {tmp_path}/submitted; echo Submitted batch job 42',
        "srun": "true",
        "sinfo": "echo 'train*|(null)'",
        "scontrol": "echo PartitionName=train Default=YES Nodes=n[1-2] PriorityTier=1 State=UP",
    }
    for name, answer in answers.items():
        (commands / name).write_text(f"#!/bin/sh\n{answer}\n")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Runs the command line and returns its complaint, having checked its manners."""
    assert main(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("holdfast: error: ") and err.count("\n") == 1
    assert not Path("submitted").exists()
    assert not Path("state").exists()
    assert not [path for path in Path("runs").glob("*")]
    return err.removeprefix("holdfast: error: ").strip()


BAD_JOBS = [
    ({"script": "nope.py"}, "script: no file "),
    ({"script": None}, "script: missing, expected the path of a Python script; or give module or command"),
    ({"module": "pkg.train"}, "module: script is given too; leave one of them out"),
    ({"script": "run.sh"}, "run.sh is a shell script, expected a Python script; `command: [bash, run.sh]` runs it"),
    ({"script": "shebang"}, "shebang is a shell script, expected a Python script"),
    ({"script": "bad.py"}, "bad.py, line 2: invalid syntax (Python 3."),
    ({"script": "outside.py"}, "outside.py, line 1: 'return' outside function (Python 3."),
    ({"script": "binary"}, "null bytes"),
    ({"script": None, "module": "pkg.gone"}, "module: no module pkg.gone, or no pkg.gone.__main__ in it, in "),
    ({"script": None, "module": "pkg"}, "module: no module pkg, or no pkg.__main__ in it, in "),
    ({"script": None, "module": "pkg/bad"}, "module: got 'pkg/bad', expected a module's name, such as pkg.train"),
    ({"script": None, "module": "pkg.bad"}, "pkg/bad.py, line 1: invalid syntax (Python 3."),
    ({"script": None, "command": ["bash", "x.sh"]}, "name: missing, expected a name for the job"),
    ({"script": None, "name": "a", "command": ["./gone.sh"]}, "command: ./gone.sh: no such file; relative paths count"),
    ({"script": None, "name": "a", "command": ["./run.sh"]}, "command: ./run.sh: is not executable"),
    ({"script": None, "name": "a", "command": "bash run.sh"}, "command: got 'bash run.sh', expected a list"),
    ({"script": 3}, "script: got 3, expected the path of a Python script"),
    ({"script": "."}, "script: no file "),
    ({"nods": 2}, "nods: unknown key, did you mean nodes?"),
    ({"zzz": 2}, "zzz: unknown key, known keys: name, script, module"),
    ({"name": "a b"}, "name: got 'a b', expected letters, digits"),
    ({"name": "../x"}, "name: got '../x', expected letters, digits"),
    ({"args": "--lr 1"}, "args: got '--lr 1', expected a list"),
    ({"args": [["x"]]}, "args[0]: got ['x'], expected a string or a number"),
    ({"args": [True]}, "args[0]: got True, expected a string or a number; put it in quotes"),
    ({"args": ["a\0b"]}, "args[0]: got 'a\\x00b', expected a string"),
    ({"args": ["\ud800"]}, "job.yaml: not valid YAML: half of a surrogate pair is not text"),
    ({"nodes": 0}, "nodes: got 0, expected a whole number, from 1 to 65536"),
    ({"nodes": 10**20}, "nodes: got 100000000000000000000, expected a whole number, from 1 to 65536"),
    ({"nodes": "4"}, "nodes: got '4', expected a whole number"),
    ({"nodes": 1.5}, "nodes: got 1.5, expected a whole number"),
    ({"nodes": True}, "nodes: got True, expected a whole number"),
    ({"nodes": None}, "nodes: got nothing, expected a whole number"),
    ({"spares": -1}, "spares: got -1, expected a whole number, from 0 to 65536"),
    ({"gpus_per_node": -8}, "gpus_per_node: got -8, expected a whole number, from 0 to 64"),
    ({"workers_per_node": 0}, "workers_per_node: got 0, expected a whole number, from 1 to 64"),
    ({"workers_per_node": 65}, "workers_per_node: got 65, expected a whole number, from 1 to 64"),
    ({"time": "5m"}, "time: got '5m', expected minutes, MM:SS, HH:MM:SS, D-HH"),
    ({"time": True}, "time: got True, expected minutes"),
    ({"slurm": {"time": "soon"}}, "slurm.time: got 'soon', expected minutes"),
    ({"time": 60, "slurm": {"time": "1:00:00"}}, "time: slurm.time is given too; leave one of them out"),
    ({"env": ["A=1"]}, "env: got ['A=1'], expected a mapping"),
    ({"env": {"A-B": "1"}}, "env.A-B: not a variable's name"),
    ({"env": {"A": True}}, "env.A: got True, expected a string or a number; put it in quotes"),
    ({"env": {"HOLDFAST_NODE": "x"}}, "env.HOLDFAST_NODE: HOLDFAST_ variables are set by the launcher"),
    ({"restart": {"max_restart": 3}}, "restart.max_restart: unknown key, did you mean max_restarts?"),
    ({"restart": {"max_without_progress": 0}}, "restart.max_without_progress: got 0, expected a whole number"),
    ({"restart": {"hang_timeout_s": 1}}, "restart.hang_timeout_s: got 1, expected seconds, at least 2; 0 for never"),
    ({"restart": {"hang_timeout_s": "5m"}}, "restart.hang_timeout_s: got '5m', expected seconds"),
    ({"restart": {"hang_timeout_s": True}}, "restart.hang_timeout_s: got True, expected seconds"),
    ({"restart": {"hang_timeout_s": float("nan")}}, "restart.hang_timeout_s: got nan, expected seconds"),
    ({"elastic": 2}, "elastic: got 2, expected a mapping"),
    ({"elastic": {}}, "elastic.min_nodes: missing, expected a whole number, at least 1"),
    ({"nodes": 2, "elastic": {"min_nodes": 3}}, "elastic.min_nodes: got 3, expected at most 2, the job's nodes; or"),
    ({"elastic": {"min_nodes": 1, "min_node": 1}}, "elastic.min_node: unknown key, did you mean min_nodes?"),
    (
        {"elastic": {"min_nodes": 4, "max_nodes": 2}},
        "elastic.max_nodes: got 2, expected at least 4, the value of min_nodes",
    ),
    ({"elastic": {"minReplicas": 4, "maxReplicas": 2}}, "elastic.maxReplicas: got 2, expected at least 4"),
    (
        {"elastic": {"min_nodes": 1, "minReplicas": 1}},
        "elastic.minReplicas: min_nodes, another name of this key, is given too; leave one of them out",
    ),
    (
        {"elastic": {"min_nodes": 2, "max_nodes": 8, "step": 4}},
        "elastic.step: got 4, expected a divisor of max_nodes - min_nodes = 6",
    ),
    (
        {"nodes": 8, "elastic": {"min_nodes": 2, "step": 4}},
        "elastic.step: got 4, expected a divisor of nodes - min_nodes = 6",
    ),
    (
        {"nodes": 3, "elastic": {"min_nodes": 2, "max_nodes": 8, "step": 2}},
        "nodes: got 3, expected one of elastic's sizes: 2, 4, 6, 8",
    ),
    (
        {"nodes": 3, "elastic": {"min_nodes": 2, "max_nodes": 65536, "step": 2}},
        "nodes: got 3, expected one of elastic's sizes: 2, 4, 6, 8, 10, 12, 14, ..., 65536",
    ),
    (
        {"nodes": 9, "elastic": {"min_nodes": 1, "max_nodes": 4}},
        "nodes: got 9, expected one of elastic's sizes: 1, 2, 3, 4",
    ),
    ({"elastic": {"sizes": [1, 2], "step": 1}}, "elastic.step: sizes is given too; leave one of them out"),
    ({"elastic": {"sizes": [2, 0]}}, "elastic.sizes: got 0, expected whole numbers, from 1 to 65536"),
    ({"elastic": {"sizes": [2, "4"]}}, "elastic.sizes[1]: got '4', expected a whole number"),
    ({"elastic": {"sizes": [2, 4], "min_nodes": 1}}, "elastic.min_nodes: got 1, expected 2, the smallest of sizes; or"),
    ({"elastic": {"sizes": [2, 4], "max_nodes": 8}}, "elastic.max_nodes: got 8, expected 4, the largest of sizes; or"),
    ({"elastic": {"min_nodes": 1, "scaling_timeout_s": -1}}, "elastic.scaling_timeout_s: got -1, expected a number"),
    (
        {"elastic": {"min_nodes": 1, "gracefulShutdownTimeoutInSeconds": 0}},
        "elastic.gracefulShutdownTimeoutInSeconds: got 0, expected a number, more than 0",
    ),
    ({"elastic": {"min_nodes": 1, "booster": "boost"}}, "elastic.booster: got 'boost', expected a mapping"),
    ({"elastic": {"min_nodes": 1, "booster": {"partion": "x"}}}, "elastic.booster.partion: unknown key, did"),
    ({"elastic": {"min_nodes": 1, "booster": {"time": "5m"}}}, "elastic.booster.time: got '5m', expected minutes"),
    (
        {"elastic": {"min_nodes": 1, "booster": {"slurm": {"partition": "x"}}}},
        "elastic.booster.slurm.partition: not an option to pass on; set `elastic.booster.partition` in the job file",
    ),
    (
        {"elastic": {"min_nodes": 1, "booster": {"slurm": {"requeue": True}}}},
        "elastic.booster.slurm.requeue: not an option to pass on; a booster that ends is submitted again",
    ),
    (
        {"gpus_per_node": 8, "elastic": {"min_nodes": 1, "booster": {"slurm": {"gres": "gpu:4"}}}},
        "elastic.booster.slurm.gres: got gpu:4, expected the GPUs of the job's other nodes, gpus_per_node: 8",
    ),
    (
        {"elastic": {"min_nodes": 1, "booster": {"slurm": {"nodes": 2}}}},
        "elastic.booster.slurm.nodes: not an option to pass on; `elastic` decides the size of a booster",
    ),
    ({"elastic": {"min_nodes": 1, "scale": {"1": 8}}}, "elastic.scale.1: got 8, expected a mapping of numbers and"),
    (
        {"nodes": 2, "elastic": {"sizes": [2, 4], "scale": {"3": {"lr": 1}}}},
        "elastic.scale.3: not a size of the job; expected one of 2, 4",
    ),
    ({"checkpoint": 5}, "checkpoint: got 5, expected a mapping"),
    ({"checkpoint": {"memry": {}}}, "checkpoint.memry: unknown key, did you mean memory?"),
    (
        {"checkpoint": {"memory": {"every_step": 10}}},
        "checkpoint.memory.every_step: unknown key, did you mean every_steps?",
    ),
    ({"checkpoint": {"memory": {"every_steps": 0}}}, "checkpoint.memory.every_steps: got 0, expected"),
    ({"checkpoint": {"memory": {"keep": "2"}}}, "checkpoint.memory.keep: got '2', expected"),
    ({"checkpoint": {"memory": [1]}}, "checkpoint.memory: got [1], expected a mapping"),
    (
        {"checkpoint": {"redundancy": {"scheme": "rs", "parity": 8}}},
        "checkpoint.redundancy.parity: got 8, expected less than",
    ),
    ({"checkpoint": {"redundancy": {"scheme": "magic"}}}, "checkpoint.redundancy.scheme: got 'magic', expected one of"),
    ({"checkpoint": {"nvme": {"path": "n"}}}, "checkpoint.nvme.path: got 'n', expected an absolute path"),
    ({"checkpoint": {"nvme": {"path": "/n", "stripe_count": 1}}}, "checkpoint.nvme.stripe_count: unknown key"),
    (
        {"checkpoint": {"namespace": "gpt", "s3": {"url": "b/x"}}},
        "checkpoint.s3.url: got 'b/x', expected s3://bucket/prefix",
    ),
    (
        {"checkpoint": {"namespace": "gpt", "s3": {"url": "s3://bkt", "path_style": 1}}},
        "s3.path_style: got 1, expected true or false",
    ),
    (
        {"checkpoint": {"namespace": "gpt", "s3": {"url": "s3://bkt", "rate_limit": 1}}},
        "did you mean rate_limit_bytes_s?",
    ),
    ({"checkpoint": {"shared": {}}}, "checkpoint.shared"),
    (
        {"checkpoint": {"shared": {"path": "gs://b/x"}}},
        "checkpoint.shared.path: got 'gs://b/x', expected a directory; a bucket goes under s3, as its url",
    ),
    (
        {"checkpoint": {"nvme": {"path": "az://b/x"}}},
        "checkpoint.nvme.path: got 'az://b/x', expected an absolute path, the same on all nodes; a bucket goes under",
    ),
    ({"checkpoint": {"shared": {"path": [3]}}}, "checkpoint.shared.path: got [3], expected"),
    ({"checkpoint": {"shared": {"path": "a\0b"}}}, "checkpoint.shared.path: got 'a\\x00b', expected"),
    ({"checkpoint": {"shared": {"path": "train.py"}}}, "train.py: is a file, expected a directory"),
    ({"slurm": {"nodes": 5}}, "slurm.nodes: not an option to pass on; set `nodes` and `spares`"),
    ({"slurm": {"ntasks_per_node": 8}}, "slurm.ntasks_per_node: not an option to pass on; set `workers_per_node`"),
    ({"slurm": {"gpus": 6}}, "slurm.gpus: not an option to pass on; set `gpus_per_node: 6` in the job file, or"),
    ({"gpus_per_node": True}, "gpus_per_node: got True, expected a whole number, from 0 to 64, or a type and a number"),
    ({"gpus_per_node": "a100"}, "gpus_per_node: got 'a100', expected a whole number, from 0 to 64, or a type and a"),
    ({"gpus_per_node": "a100:0"}, "gpus_per_node: got 'a100:0', expected"),
    ({"gpus_per_node": "a100:4,h100:4"}, "gpus_per_node: got 'a100:4,h100:4', expected"),
    ({"slurm": {"gres": "gpu:8(S:0-3)"}}, "slurm.gres: got 'gpu:8(S:0-3)', expected gpu:8"),
    ({"slurm": {"gres": "shard:4"}}, "slurm.gres: got 'shard:4': a part of a GPU, expected whole ones, such as gpu:1"),
    ({"slurm": {"tres_per_task": "cpu:2,gres/gpu:8"}}, "slurm.tres_per_task: got 'cpu:2,gres/gpu:8': it requests GPUs"),
    ({"slurm": {"gpus-per-socket": 4}}, "slurm.gpus-per-socket: not an option to pass on; set `gpus_per_node`"),
    ({"slurm": {"gres": "gpu:80"}}, "slurm.gres: got 80, expected a whole number, from 0 to 64"),
    (
        {"gpus_per_node": 4, "slurm": {"gres": "gpu:8"}},
        "gpus_per_node: got 4, and slurm.gres asks for gpu:8; leave one",
    ),
    ({"slurm": {"gpus_per_task": 8}}, "slurm.gpus_per_task: not an option to pass on; a node's workers share its GPUs"),
    (
        {"nodes": 2, "slurm": {"gpus": "a100:16"}},
        "set `gpus_per_node: a100:8` in the job file, or submit with --gpus-per",
    ),
    ({"nodes": 2, "slurm": {"gpus": 3}}, "every node needs as many: set `gpus_per_node` in the job file"),
    ({"slurm": {"signal": "HUP@60"}}, "slurm.signal: got 'HUP@60', expected USR1@SECONDS or USR2@SECONDS"),
    ({"slurm": {"p": "train"}}, "slurm.p: not a long sbatch option"),
    ({"slurm": {"partition": ["a"]}}, "slurm.partition: got ['a'], expected a string, a number or true"),
    ({"slurm": {"comment": "a\nrm -rf x"}}, "slurm.comment: got 'a\\nrm -rf x', expected"),
    ({"nodes": 2, "spares": 1}, "nodes: got 2 + 1 spares = 3, expected at most 2, all that partition train has"),
]


@pytest.mark.parametrize(("keys", "message"), BAD_JOBS, ids=[message[:40] for _, message in BAD_JOBS])
def test_a_bad_job_file_is_refused(keys: dict, message: str, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[type-arg]
    name = {} if "command" in keys else {"name": "gpt"}  # a command needs a name of the job
    Path("job.yaml").write_text(yaml.safe_dump({"script": "train.py"} | name | keys))
    assert message in refused(capsys, "submit", "job.yaml")


def test_no_error_of_a_job_file_hides_another() -> None:
    def places(keys: Mapping[str, Any]) -> set[str]:
        try:
            JobSpec.from_mapping({"script": "train.py", "name": "gpt"} | keys, Path())
        except UsageError as error:
            return {line.split(": ")[1] for line in str(error).splitlines()}
        return set()

    alone = [(keys, places(keys)) for keys, _ in BAD_JOBS]
    program = {"script", "module", "command", "name"}
    for (one, its), (other, others) in itertools.combinations([each for each in alone if each[1]], 2):
        if one.keys() & program and other.keys() & program:
            continue  # each says something about the other
        if not one.keys() & other.keys() and not {"slurm", "gpus_per_node"} <= one.keys() | other.keys():
            assert places(one | other) == its | others


@pytest.mark.parametrize("verb", ["run", "submit"])
def test_a_bucket_is_no_folder_for_jobs(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    complaint = refused(capsys, verb, "job.yaml", "--folder", "gs://b/x")
    assert complaint.startswith("folder: got gs://b/x, expected a directory; ") and not Path("gs:").exists()


def test_all_that_is_wrong_in_a_job_file_is_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.yaml").write_text(
        "script: nope.py\nnods: 2\ntime: 5m\nslurm: {p: x, gpus: 6, gres: 'gpu:80'}\nenv: {A-B: 1}\n"
        "restart: {hang_timeout_s: 1}\nelastic: {min_nodes: 1, sizes: [1], step: 1}\n"
        "checkpoint: {memory: {keep: 1}, redundancy: {scheme: xor, copies: 2, parity: 1}, shared: {}}\n"
    )
    assert main(["submit", "job.yaml", "--spares=-1"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert all(line.startswith("holdfast: error: ") for line in said)
    assert "holdfast: error: command line: spares: got -1, expected a whole number, from 0 to 65536" in said
    assert "holdfast: error: job.yaml: nods: unknown key, did you mean nodes?" in said
    keys = {line.removeprefix("holdfast: error: ").split(": ")[1] for line in said}
    assert keys == {
        "spares", "script", "nods", "time", "env.A-B", "slurm.p", "slurm.gpus", "slurm.gres", "restart.hang_timeout_s",
        "elastic.step", "checkpoint.memory.keep", "checkpoint.redundancy.copies", "checkpoint.redundancy.parity",
        "checkpoint.shared.path",
    }  # fmt: skip


def test_a_good_job_file_is_submitted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "job.yaml"]) == 0
    assert capsys.readouterr().out.startswith("submitted job 42: 1 node + 0 spares, folder ")
    assert Path("submitted").read_text().startswith("sbatch ")


BAD_COMMANDS = [
    (["init", "gs://b/x"], "init: got gs://b/x, expected a directory; "),
    (["init", "s3://b"], "a bucket for checkpoints is checkpoint.s3.url in the job file"),
    (["init", "az://b/x/y"], "init: got az://b/x/y, expected a directory; "),
    (["doctor", "--folder", "gs://b/x"], "--folder: got gs://b/x, expected a directory; "),
    (["supervise", "job.yaml", "--job-dir", "s3://b/x"], "--job-dir: got s3://b/x, expected a directory; "),
    (["submit"], "Missing argument 'JOB.yaml'"),
    (["submit", "nope.yaml"], "nope.yaml: no such file; expected a job file (YAML)"),
    (["submit", "."], ".: not a regular file; expected a job file (YAML)"),
    (["submit", "train.py"], "train.py: is a Python script, expected a job file (YAML); `holdfast init` writes one"),
    (["run", "run.sh"], "run.sh: is a shell script, expected a job file (YAML)"),
    (
        ["run", "job.yaml", "--steps", "5"],
        "words for the script go after --: holdfast run job.yaml -- --steps 5; see `holdfast run --help`",
    ),
    (["run", "--steps=5", "job.yaml"], "words for the script go after --: holdfast run JOB.yaml -- --steps=5 job.yaml"),
    (["submit", "job.yaml", "--cluster", "pbs"], "cluster: got 'pbs', expected one of slurm, local"),
    (["submit", "job.yaml", "--cluster", "local", "-p", "train"], "expected no sbatch options there"),
    (["submit", "job.yaml", "--nodes", "0"], "command line: nodes: got 0, expected a whole number, from 1 to 65536"),
    (["submit", "job.yaml", "--nodes", "x"], "; see `holdfast submit --help`"),
    (["submit", "job.yaml", "--nodes", "3"], "nodes: got 3 + 0 spares = 3, expected at most 2"),
    (["submit", "job.yaml", "--spares=-1"], "command line: spares: got -1, expected a whole number, from 0 to 65536"),
    (["submit", "-p", "train"], "Missing argument 'JOB.yaml'"),
    (["submit", "--typo", "job.yaml", "job.yaml"], "unexpected extra argument"),
    (["submit", "job.yaml", "-N", "2-4"], "Invalid value for '--nodes' / '-N': Input should be a valid integer"),
    (["submit", "job.yaml", "-n", "4"], "--ntasks: not an option to pass on"),
    (["ckpt", "ls", "ftp://bucket/x"], "ftp://bucket/x: got a URL of kind ftp://, expected a path, or s3://, gs://"),
    (["submit", "job.yaml", "--nodes=2", "--gpus=16"], "--gpus: not an option to pass on; set `gpus_per_node: 8`"),
    (["submit", "job.yaml", "--nodes=2", "-G16"], "or submit with --gpus-per-node 8"),
    (["submit", "job.yaml", "--gres=gpu::8"], "slurm.gres: got 'gpu::8', expected gpu:8"),
    (
        ["submit", "job.yaml", "--tres-per-task=gres/gpu:8"],
        "sbatch option --tres-per-task: got 'gres/gpu:8': it requests",
    ),
    (["submit", "job.yaml", "--gpus-per-node", "65"], "command line: gpus_per_node: got 65, expected a whole number"),
    (["submit", "job.yaml", "--array=0-3"], "--array: not an option to pass on; submit one job per configuration"),
    (["submit", "job.yaml", "--parsable"], "--parsable: not an option to pass on; Holdfast reads the job's id"),
    (["submit", "-Q", "job.yaml"], "--quiet: not an option to pass on; Holdfast reads the job's id in sbatch's"),
    (["submit", "job.yaml", "-V"], "--version: not an option to pass on; `sbatch --version` prints Slurm's"),
    (["submit", "--usage", "job.yaml"], "--usage: not an option to pass on; `sbatch --usage` prints"),
    (["submit", "-W", "job.yaml"], "--wait: not an option to pass on; a job gets its options once sbatch has"),
    (["submit", "-Mother", "job.yaml"], "--clusters: not an option to pass on; submit on a login node of that"),
    (["submit", "job.yaml", "--signal=B:KILL@60"], "--signal: got 'B:KILL@60', expected USR1@SECONDS or USR2"),
    (["submit", "job.yaml", "--folder", "train.py/runs"], "train.py/runs: jobs cannot be kept here"),
    (["submit", "job.yaml", "--dry-run", "--cluster", "local"], "--dry-run: got --cluster local, expected slurm"),
    (["run", "nope.yaml"], "nope.yaml: no such file"),
    (["run", "job.yaml", "--nodes", "0"], "nodes: got 0"),
    (["status", "nope"], "no job 'nope': not a job's folder, not in ./runs, not submitted from here"),
    (["logs", "nope"], "no job 'nope'"),
    (["cancel", "nope"], "no job 'nope'"),
    (["frobnicate"], "No such command 'frobnicate'"),
    (["cluster", "sideways"], "No such command 'sideways'"),
    (["status", "--jsn"], "No such option: --jsn"),
    (["cluster", "up", "--nodes", "0"], "number of nodes: got 0, expected 1 to 64"),
    (["cluster", "up", "--name", "../x"], "cluster name: got '../x', expected a-z"),
    (["node", "check", "--config", "."], ".: not a regular file; expected settings (YAML)"),
    (["node", "heal", "--every", "nan"], "--every: got nan, expected seconds"),
    (["node", "heal", "--config", "."], ".: not a regular file, expected one that only root can write"),
    (["node", "lemons", "--days=-1"], "Invalid value for '--days'"),
    (
        ["node", "image", "docker", "--torch", "x", "--wheel", "x"],
        "got version 'x', expected one that begins with numbers",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_COMMANDS, ids=[" ".join(words) for words, _ in BAD_COMMANDS])
def test_a_bad_command_line_is_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name for path in Path().iterdir()}
    assert message in refused(capsys, *arguments)
    assert {path.name for path in Path().iterdir()} <= {*before, "runs"}


def test_a_checkpoint_directory_of_another_namespace_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("shared/gpt").mkdir(parents=True)
    Path("shared/gpt/something").write_text("not a checkpoint")
    Path("job.yaml").write_text("name: gpt\nscript: train.py\ncheckpoint: {shared: {path: shared}}\n")
    assert "shared/gpt: holds other files" in refused(capsys, "submit", "job.yaml")


def test_without_slurm_submission_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "no sbatch on PATH; submit from a login node, or use --cluster local" in refused(
        capsys, "submit", "job.yaml"
    )


def test_what_sbatch_refuses_leaves_nothing_behind(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "bin" / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: Invalid account' >&2\nexit 1\n")
    assert main(["submit", "job.yaml"]) == 1
    assert capsys.readouterr().err == (
        "holdfast: error: sbatch refused the job: Invalid account (yours: `sacctmgr show assoc user=$USER "
        "format=Account,Partition,QOS`); nothing was submitted\n"
    )
    assert list(Path("runs").iterdir()) == []
    assert not Path("state").exists()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("exec sleep 60", "no answer within 0.5 s; the job may be in the queue: `squeue --me`"),
        ("echo Submitted batch job 42; exec sleep 60", "no answer within 0.5 s; job 42 was cancelled"),
        (
            "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1",
            "Batch job submission failed: Socket timed out on send/recv operation; the job may be in the queue: "
            "`squeue --me`",
        ),
        ("echo accepted", "got 'accepted\\n', expected the job's id; the job may be in the queue: `squeue --me`"),
    ],
)
def test_a_job_that_may_be_in_the_queue_is_said_to_be_so(
    answer: str, message: str, desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.clusters.slurm.submission._SBATCH_TIMEOUT_S", 0.5)
    for name, script in (("sbatch", answer), ("scancel", f'echo "$@" >> {desk}/cancelled')):
        (desk / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (desk / "bin" / name).chmod(0o755)
    assert main(["submit", "job.yaml"]) == 1
    assert capsys.readouterr().err == f"holdfast: error: sbatch: {message}\n"
    assert (desk / "cancelled").exists() is ("was cancelled" in message)
    assert list(Path("runs").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "step"),
    [
        ("Invalid generic resource (gres) specification", "(gpus_per_node: "),
        ("invalid partition specified: x; Invalid partition name specified", "(`sinfo -s` lists them)"),
        ("Could not establish a configuration source", "no Slurm cluster answers here; `holdfast run` runs the job"),
        ("resolve_ctls_from_dns_srv: res_nsearch error: Unknown host", "no Slurm cluster answers here"),
        ("unrecognized option --steps", "(words for the script go after --: holdfast submit JOB.yaml -- --steps 10)"),
    ],
)
def test_what_sbatch_refuses_has_a_next_step(
    desk: Path, words: str, step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (desk / "bin" / "sbatch").write_text(f"#!/bin/sh\necho 'sbatch: error: {words}' >&2\nexit 1\n")
    assert main(["submit", "job.yaml"]) == 1
    assert step in capsys.readouterr().err


def test_a_supervisor_outside_slurm_says_so_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert main(["supervise", "job.yaml"]) == 2
    complaint = capsys.readouterr().err
    assert "in no job of a scheduler; `holdfast run` runs a job without one" in complaint and complaint.count("\n") == 1
    assert not Path("runs").exists()
