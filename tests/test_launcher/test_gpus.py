"""What a job asks for in GPUs, however it says so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from launcher.clusters.local.cluster import require_machine
from launcher.clusters.slurm.scheduler import SlurmScheduler
from launcher.errors import UsageError
from launcher.job import gpus
from launcher.job.jobfile import JobSpec, load_job


@pytest.mark.parametrize(
    ("gpus_per_node", "gres", "requested", "count", "option"),
    [
        (0, None, 0, 0, None),
        ("auto", "gpu:8", 8, 8, None),
        (None, "craynetwork:1,gpu:2", 2, 2, None),
        (0, "gpumem:40G", 0, 0, None),
        (8, None, 8, 8, 8),
        ("8", None, 8, 8, 8),
        ("a100:8", None, "a100:8", 8, "a100:8"),
        (None, "gpu", 1, 1, None),
        (None, "gpu:8", 8, 8, None),
        (None, "gpu:a100:8", "a100:8", 8, None),
        (None, "gpu:a100", "a100:1", 1, None),
        (None, "gpu:a100:2,gpu:h100:6", 8, 8, None),
        (None, "gpu:0", 0, 0, None),
        (8, "lustre:1", 8, 8, 8),
        (8, "gpu:8, lustre:1", 8, 8, None),
        (64, None, 64, 64, 64),
    ],
)
def test_gpus_are_read_the_same_way_wherever_they_are_asked_for(
    gpus_per_node: int | str | None, gres: str | None, requested: int | str, count: int, option: int | str | None
) -> None:
    assert gpus.requested(gpus_per_node, gres) == requested
    assert gpus.count(requested) == count
    assert gpus.option(requested, gres) == option


@pytest.mark.parametrize(
    ("gpus_per_node", "gres", "message"),
    [
        (-1, None, "gpus_per_node: got -1"),
        (65, None, "gpus_per_node: got 65"),
        (True, None, "gpus_per_node: got True"),
        ("a100:0", None, "gpus_per_node: got 'a100:0'"),
        ("a100", None, "gpus_per_node: got 'a100'"),
        (None, "gpu:65", "slurm.gres: got 65"),
        ("gpu:8", None, "gpus_per_node: got 'gpu:8'"),
        (None, "GPU:8", "slurm.gres: got 'GPU:8', expected gpu:8$"),
        (None, "gpu::8", "slurm.gres: got 'gpu::8', expected gpu:8$"),
        (None, "gres:gpu:8", "slurm.gres: got 'gres:gpu:8', expected gpu:8$"),
        (None, "gres/gpu:8", "slurm.gres: got 'gres/gpu:8', expected gpu:8$"),
        (None, "gpu=8", "slurm.gres: got 'gpu=8', expected gpu:8$"),
        (None, "lustre:1,gpu:a100:8(S:0,2)", r"slurm.gres: got 'gpu:a100:8\(S:0,2\)', expected gpu:a100:8$"),
        (None, "gpu:a100:8:no_consume", "slurm.gres: .* expected gpu:8 or gpu:a100:8$"),
        (None, "shard:4", "slurm.gres: got 'shard:4': a part of a GPU, expected whole ones"),
        (8, "mps:100", "slurm.gres: got 'mps:100': a part of a GPU"),
        (4, "gpu:8", "gpus_per_node: got 4, and slurm.gres asks for gpu:8"),
        (8, "gpu:a100:8", "gpus_per_node: got 8, and slurm.gres asks for gpu:a100:8"),
    ],
)
def test_requests_that_contradict_or_make_no_sense_are_refused(
    gpus_per_node: int | str | None, gres: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        gpus.requested(gpus_per_node, gres)


@pytest.mark.parametrize(("value", "gres"), [(None, None), ("auto", None), ("auto", "lustre:1"), (None, "gpumem:4G")])
def test_without_a_request_the_gpus_are_found(value: str | None, gres: str | None) -> None:
    assert gpus.requested(value, gres) is None


@pytest.mark.parametrize(
    ("visible", "job", "gpus_per_node", "workers"),
    [
        ("0,1,2,3", {}, 4, 4),
        ("0,1,2,3", {"nodes": 2, "spares": 1}, 2, 2),
        ("0,1,2,3", {"gpus_per_node": "auto", "workers_per_node": 1}, 4, 1),
        ("0,1,2,3", {"nodes": 2, "elastic": {"min_nodes": 1, "max_nodes": 4}}, 1, 1),
        ("0,1,2,3", {"gpus_per_node": 0}, 0, 1),
        ("0", {"nodes": 2}, 0, 1),
        ("", {"nodes": 2}, 0, 1),
    ],
)
def test_on_this_machine_the_nodes_share_its_gpus_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    visible: str,
    job: dict[str, Any],
    gpus_per_node: int,
    workers: int,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text(json.dumps({"script": "train.py", **job}))
    spec = load_job(tmp_path / "job.yaml", auto_gpus=gpus.of_this_machine)
    assert (spec.gpus_per_node, spec.workers_per_node) == (gpus_per_node, workers)
    assert JobSpec.from_json(spec.to_json()) == spec


def test_inside_a_slurm_job_its_gpus_are_taken_and_before_it_none() -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "c", "SLURM_JOB_PARTITION": "p", "SLURM_JOB_NODELIST": "n1"}
    for given, expected in (({"SLURM_GPUS_ON_NODE": "8"}, 8), ({}, 0)):
        place = SlurmScheduler().place(job | {"SLURMD_NODENAME": "n1"} | given)
        assert place is not None and gpus.of_the_allocation(place.gpus)(4) == expected
    assert gpus.not_here(4) == 0


@pytest.mark.parametrize(
    ("visible", "job", "words"),
    [
        ("0,1", {"gpus_per_node": 0}, "2 GPUs here, none for the job: it trains on the CPU (see --gpus-per-node)"),
        ("0", {}, "1 GPU here, none for the job"),
        ("", {"gpus_per_node": "a100:8"}, "got a100:8, and this machine has no GPU: 8 workers a node train on the CPU"),
        ("", {}, ""),
        ("0,1", {"gpus_per_node": 2}, ""),
    ],
)
def test_that_a_job_trains_on_the_cpu_is_said_where_a_gpu_is_asked_for_or_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, visible: str, job: dict[str, Any], words: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    (tmp_path / "train.py").touch()
    spec = JobSpec.from_mapping({"script": "train.py", **job}, tmp_path)
    remark = gpus.remark(spec.gpus_per_node, spec.workers_per_node)
    assert words in remark and bool(remark) == bool(words)


@pytest.mark.parametrize(
    ("request_", "is_named"),
    [
        ("gpu:8(S:0-1)", True), ("(null)", False), ("gres/gpu:8", True), ("cpu=4,gres/gpu=2", True), ("cpu:4", False),
        ("gres/gpu:a100:8", True), ("shard:8", True), (None, False), ("gpumem:4G", False),
    ],
)  # fmt: skip
def test_gpus_are_recognised_in_what_slurm_takes_and_prints(request_: str | None, is_named: bool) -> None:
    assert gpus.names_gpus(request_) is is_named


@pytest.mark.parametrize(
    ("total", "nodes", "each"),
    [(16, 2, "8"), ("16", 2, "8"), ("a100:16", 2, "a100:8"), (3, 2, None), ("all", 2, None), ("", 1, None)],
)
def test_gpus_of_all_nodes_together_are_divided_where_they_can_be(
    total: int | str, nodes: int, each: str | None
) -> None:
    assert gpus.each_of(total, nodes) == each


@pytest.mark.parametrize(
    ("variable", "devices", "visible"),
    [
        (None, ["nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "null"], ["0", "1", "2"]),
        (None, [], []),
        ("3,5", ["nvidia0"], ["3", "5"]),
        (" GPU-8a, GPU-9b ,", [], ["GPU-8a", "GPU-9b"]),
        ("", ["nvidia0"], []),
        ("-1", ["nvidia0"], []),
    ],
)
def test_this_machines_gpus_are_those_that_torch_would_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None, devices: list[str], visible: list[str]
) -> None:
    for device in devices:
        (tmp_path / device).touch()
    monkeypatch.setattr(gpus, "_DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert gpus.visible() == visible


def test_each_node_of_the_local_cluster_gets_its_own_gpus() -> None:
    machine = ["0", "1", "GPU-2", "GPU-3"]
    assert [gpus.share(machine, "a100:2", rank) for rank in range(2)] == [["0", "1"], ["GPU-2", "GPU-3"]]
    assert gpus.share(machine, 0, 1) == []


@pytest.mark.parametrize(
    ("visible", "job", "refused"),
    [
        ("0,1,2,3", {"nodes": 2, "spares": 1, "gpus_per_node": 2}, False),  # a spare gets a lost node's
        ("0,1,2,3", {"nodes": 3, "gpus_per_node": 2}, True),
        ("0,1,2,3", {"nodes": 2, "gpus_per_node": 2, "elastic": {"min_nodes": 1, "max_nodes": 3}}, True),
        ("0", {"nodes": 3, "gpus_per_node": 0}, False),
        ("", {"nodes": 4, "gpus_per_node": 8}, False),  # on the CPU, to try a cluster's job file on a laptop
    ],
)
def test_a_job_that_needs_more_gpus_than_this_machine_has_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, visible: str, job: dict[str, Any], refused: bool
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    (tmp_path / "train.py").touch()
    spec = JobSpec.from_mapping({"name": "a", "script": "train.py", **job}, tmp_path)
    if not refused:
        return require_machine(spec)
    message = "gpus_per_node: got 2: 3 nodes on this machine need 6 GPUs, and it has 4; run it on fewer nodes"
    with pytest.raises(UsageError, match=re.escape(message)):
        require_machine(spec)
    return None
