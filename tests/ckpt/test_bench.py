"""`holdfast ckpt bench` measures everything in one run, prints what scripts read, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ckpt.bench.figures import Figure
from ckpt.cli import app


def leftovers() -> set[Path]:
    return set(Path("/dev/shm").glob("holdfast-bench-*"))


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bench")
    before = leftovers()
    result = CliRunner().invoke(app, ["bench", "--size-mib", "16", "--repeat", "1", "--dir", str(folder), "--json"])
    assert result.exit_code == 0, result.output
    assert leftovers() <= before and not list(folder.iterdir())
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def test_every_figure_stands_beside_its_peers(figures: dict[str, Any]) -> None:
    assert {name: list(figure["peer"]) for name, figure in figures.items()
            if "100 saves" not in name and not name.startswith("manifest")} == {
        "save() blocks": [
            "plain copy_ into mapped memory", "dcp.async_save, own stager", "dcp.async_save, default stager",
            "dcp.save to /dev/shm", "torch.save to /dev/shm",
        ],
        "first save() blocks": ["plain copy_ into new memory"],
        "load() from own memory": ["plain copy from mapped memory", "dcp.load from /dev/shm"],
        "drain to the nvme tier": list(figures["drain to the nvme tier"]["peer"]),
        "drain to the shared tier": list(figures["drain to the shared tier"]["peer"]),
        "S3 put": list(figures["S3 put"]["peer"]),
        "S3 get": list(figures["S3 get"]["peer"]),
    }  # fmt: skip
    assert all(set(figure) - {"missing"} == {"value", "unit", "peer", "ratio"} for figure in figures.values())
    assert all(figure["value"] > 0 for figure in figures.values())


def test_a_peer_that_is_not_there_is_named_with_the_reason(figures: dict[str, Any]) -> None:
    wanted = {
        "drain to the nvme tier": {"fio's sequential direct write"},
        "S3 put": {"boto3's default transfer", "s3torchconnector"},
        "S3 get": {"boto3's default transfer", "s3torchconnector"},
    }
    for name, peers in wanted.items():
        found, missing = figures[name]["peer"], figures[name].get("missing", {})
        assert peers <= {*found, *missing}, name
        assert not {*found} & {*missing}, name
        assert all(missing.values())


def test_the_manifest_grows_no_faster_than_the_world(figures: dict[str, Any]) -> None:
    sizes = [figures[f"manifest of {world:,} ranks x 500 tensors: size"]["value"] for world in (1024, 4096, 16384)]
    assert sizes[1] < 4.1 * sizes[0] and sizes[2] < 4.1 * sizes[1] and sizes[2] < 50  # MB; 30 are checksums


def test_100_saves_leave_no_descriptors_and_no_memory_behind(figures: dict[str, Any]) -> None:
    for name in ("worker, descriptors", "agent, descriptors", "memory directory"):
        figure = figures[f"{name} after 100 saves"]
        assert figure["value"] == figure["peer"]["before them"], name
    for name in ("worker, own memory", "agent, own memory"):
        figure = figures[f"{name} after 100 saves"]
        assert figure["value"] - figure["peer"]["before them"] < 16, name  # MiB: not even one state
    assert figures["agent, own memory after 100 saves"]["value"] < 200


def test_the_ratio_is_to_the_first_peer() -> None:
    assert Figure(name="x", value=3.0, unit="s", peers={"floor": 2.0, "other": 9.0}).ratio == 1.5
    assert Figure(name="x", value=3.0, unit="s").ratio is None
