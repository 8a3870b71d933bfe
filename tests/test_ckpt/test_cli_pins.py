"""`holdfast ckpt pin` and `unpin`, and what ls, gc and copy make of pins, milestones and best steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from s3_kit import S3Server, s3_server
from test_cli_ckpt import facts, run
from test_cli_lines import steps, where
from test_verbs_killed import files, killed
from tier_kit import Stored, save_id, stored

from ckpt.format.lasting import Best, Lasting
from ckpt.format.line import FIRST, NOBODY
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.nvme import NvmeTier
from ckpt.tiers.posix import SharedTier

RULES = Lasting(every_steps=4, best=Best(metric="loss", mode="min"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture(params=["shared", "s3"])
def place(request: pytest.FixtureRequest, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stored:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint_url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return with_steps(stored(request.param, tmp_path, server.options))


def with_steps(place: Stored) -> Stored:
    """Steps 3 to 6: 3 has the lowest loss, and 4 is a milestone of `RULES`."""
    for step, loss in ((3, 0.1), (4, 0.4), (5, 0.3), (6, 0.2)):
        place.commit(save_id(step), loss=loss)
    return place


def test_a_pinned_step_outlives_gc_and_goes_once_it_is_unpinned(place: Stored) -> None:
    said = run("pin", where(place), "4", "--note", "for the paper")
    assert said.exit_code == 0 and "step 4 of namespace ns is pinned" in said.stdout
    assert "was pinned already" in run("pin", where(place), "4").stdout
    assert place.tier.pin_note(directory_name(save_id(4))) == "for the paper"
    assert [row["step"] for row in facts("ls", where(place)) if row["pinned"]] == [4]
    assert "pinned; loss 0.4" in run("ls", where(place)).stdout
    assert run("gc", where(place), "--keep", "1", "--newest-only").exit_code == 0 and steps(place) == [6, 4]
    assert facts("unpin", where(place), "4")["changed"]
    assert not facts("unpin", where(place), "4")["changed"]
    assert run("gc", where(place), "--keep", "1").exit_code == 0 and steps(place) == [6]


def test_a_step_of_a_line_that_was_left_is_pinned_by_its_line(place: Stored) -> None:
    line = FIRST.fork(3, number=1, began_s=1.0, seed="s", owner=NOBODY)
    place.commit(replace(save_id(7), line=line))
    refused = run("pin", where(place), "5")
    assert refused.exit_code == 2 and "has no committed step 5" in refused.stderr and "--line" in refused.stderr
    assert run("pin", where(place), "5", "--line", "0.2.0").exit_code == 0
    run("gc", where(place), "--keep", "1", "--left")
    assert steps(place) == [7, 5]


def test_gc_obeys_the_rules_of_the_last_job_unless_only_the_newest_are_asked_for(place: Stored) -> None:
    place.tier.write_lasting(RULES)
    shown = run("ls", where(place)).stdout
    assert "best loss; loss 0.1" in shown and "milestone; loss 0.4" in shown
    assert "1 step," in run("gc", where(place), "--keep", "1", "--dry-run").stdout
    assert run("gc", where(place), "--keep", "1").exit_code == 0 and steps(place) == [6, 4, 3]
    assert run("gc", where(place), "--keep", "1", "--newest-only").exit_code == 0 and steps(place) == [6]


def test_a_copy_has_metrics_pins_and_rules_and_obeys_them(place: Stored, tmp_path: Path) -> None:
    place.tier.write_lasting(RULES)
    run("pin", where(place), "5", "--note", "mine")
    assert run("copy", where(place), tmp_path / "copy").exit_code == 0
    copy = SharedTier(tmp_path / "copy", "ns")
    assert copy.read_manifest(save_id(3)).metrics == {"loss": 0.1}
    assert copy.pins() == {directory_name(save_id(5))} and copy.pin_note(directory_name(save_id(5))) == "mine"
    assert copy.read_lasting() == RULES
    run("gc", copy.folder, "--keep", "1")
    assert [save.step for save in copy.steps()] == [6, 5, 4, 3]
    copy.write_lasting(Lasting(every_steps=9))
    assert run("copy", where(place), tmp_path / "copy").exit_code == 0
    assert copy.read_lasting() == Lasting(every_steps=9), "a place with rules of its own keeps them"


def test_a_nodes_own_disk_has_no_pins(tmp_path: Path) -> None:
    tier = NvmeTier(tmp_path, "ns", node="n1")
    tier.prepare()
    refused = run("pin", tier.folder, "3")
    assert refused.exit_code == 2 and "holds only the shards of node n1" in refused.stderr


def test_damaged_rules_stop_gc_and_not_ls(tmp_path: Path, server: S3Server) -> None:
    place = with_steps(stored("shared", tmp_path, server.options))
    place.put("ns/lasting.json", b"torn")
    assert run("ls", where(place)).exit_code == 0 and "are not marked" in run("ls", where(place)).stderr
    assert run("gc", where(place), "--keep", "1").exit_code != 0 and steps(place) == [6, 5, 4, 3]
    assert run("gc", where(place), "--keep", "1", "--newest-only").exit_code == 0


@pytest.mark.parametrize("stage", ["mkdir:0", "fsync:0", "replace:0", "fsync:1"])
def test_a_pin_that_is_killed_loses_nothing_and_can_be_repeated(tmp_path: Path, server: S3Server, stage: str) -> None:
    place = with_steps(stored("shared", tmp_path, server.options))
    before = files(*tmp_path.glob("shared/ns/step-*"), *tmp_path.rglob("step-*"))
    killed(stage, "pin", where(place), "4")
    assert files(*tmp_path.glob("shared/ns/step-*"), *tmp_path.rglob("step-*")) == before
    assert run("pin", where(place), "4").exit_code == 0
    run("gc", where(place), "--keep", "1")
    assert steps(place) == [6, 4]


def test_a_step_whose_removal_was_killed_after_its_pin_comes_back(tmp_path: Path, server: S3Server) -> None:
    """The pin came between retention's choice and the rename, and retention was killed before it looked for pins."""
    place = with_steps(stored("shared", tmp_path, server.options))
    folder, name = Path(place.tier.where), directory_name(save_id(4))
    place.tier.pin(save_id(4), "")
    (folder / name).rename(folder / f".trash-{name}")
    assert run("gc", where(place), "--keep", "9").exit_code == 0
    assert steps(place) == [6, 5, 4, 3]


@pytest.mark.parametrize("stage", ["replace:0", "rmdir:0"])
def test_a_retention_that_is_killed_leaves_every_pinned_step(tmp_path: Path, server: S3Server, stage: str) -> None:
    place = with_steps(stored("shared", tmp_path, server.options))
    run("pin", where(place), "4")
    killed(stage, "gc", where(place), "--keep", "1")
    assert {6, 4} <= set(steps(place))
    run("gc", where(place), "--keep", "1")
    assert steps(place) == [6, 4]
