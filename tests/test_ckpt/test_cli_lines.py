"""Lines of descent in `holdfast ckpt`: ls, rollback, copy and gc, on a directory and in a bucket."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from s3_kit import S3Server, s3_server
from test_cli_ckpt import facts, run
from tier_kit import Stored, path_of, save_id, stored

from ckpt.cli import rollback
from ckpt.format.line import FIRST, NOBODY, Line, Owner
from ckpt.format.shard_record import SaveId, seal_json, unseal_json
from ckpt.tiers.claim import Claim

CLAIM = Claim(run_id="other", attempt=0, nonce="n", user="ann", host="n1", job="7", since_s=1.0)


def forked(line: Line, step: int | None, number: int, seed: str = "seed", owner: Owner = NOBODY) -> Line:
    return line.fork(step, number=number, began_s=float(number), seed=seed, owner=owner)


def of(line: Line, step: int) -> SaveId:
    return replace(save_id(step), line=line)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture(params=["shared", "s3"])
def place(request: pytest.FixtureRequest, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stored:
    """Steps 3, 4 and 5 of Holdfast 0.2.0."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint_url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    place = stored(request.param, tmp_path, server.options)
    for step in (3, 4, 5):
        place.commit(save_id(step))
    return place


def where(place: Stored) -> str:
    return getattr(place.tier, "url", None) or place.tier.where


def steps(place: Stored) -> list[int]:
    return [save.step for save in place.tier.steps()]


def test_ls_shows_the_newest_lines_descent_first_and_the_others_as_left(place: Stored) -> None:
    line = forked(FIRST, 3, 1, owner=Owner(name="gpt", script="train.py", user="ann"))
    place.commit(of(line, 4))
    fresh = forked(line, None, 2)
    place.commit(of(fresh, 1))
    rows = facts("ls", where(place))
    assert (rows[0]["step"], rows[0]["line"]) == (1, fresh.id)
    assert sorted((row["step"], row["line"]) for row in rows[1:]) == [(3, ""), (4, ""), (4, line.id), (5, "")]
    assert rows[0]["is_current"] and not any(row["is_current"] for row in rows[1:])
    shown = run("ls", where(place))
    assert shown.exit_code == 0 and "DAMAGED" not in shown.stdout
    assert f"the next start restores it, in line {fresh.id}" in shown.stdout.splitlines()[1]
    assert f"left: line {line.id} (job gpt of script train.py, user ann)" in shown.stdout


def test_a_step_of_another_format_is_no_damage(place: Stored) -> None:
    name = path_of(save_id(5), "manifest.json")
    value = unseal_json(place.get(name))
    place.put(name, seal_json(value | {"format": 99, "since": "9.1.0"}))
    shown = run("ls", where(place))
    assert shown.exit_code == 0 and "written by Holdfast 9.1.0 or newer" in shown.stdout
    assert "DAMAGED" not in shown.stdout
    verified = run("verify", where(place), "--quarantine")
    assert verified.exit_code == 3 and "not verified by this release" in verified.stdout
    assert "quarantined" not in verified.stdout and "DAMAGED" not in verified.stdout
    run("gc", where(place), "--keep", "1", "--left")
    assert place.get(name)


def test_after_a_rollback_the_next_start_restores_the_step_and_the_others_stay(place: Stored) -> None:
    said = run("rollback", where(place), "--to", "3")
    assert said.exit_code == 0 and "restores step 3" in said.stdout
    assert "stays aside: steps 4 to 5 (2 steps) of the line of Holdfast 0.2.0" in said.stdout
    assert steps(place)[0] == 3 and sorted(steps(place)) == [3, 4, 5]
    (line,) = place.tier.lines()
    again = run("rollback", where(place), "--to", "3")
    assert again.exit_code == 0 and "already; nothing was changed" in again.stdout
    assert place.tier.lines() == [line]
    assert run("gc", where(place), "--keep", "1").exit_code == 0
    assert steps(place) == [3, 5]


def test_a_rollback_goes_to_a_line_that_was_left(place: Stored) -> None:
    line = forked(FIRST, 3, 1)
    place.commit(of(line, 7))
    refused = run("rollback", where(place), "--to", "5")
    assert refused.exit_code == 2 and "has no committed step 5" in refused.stderr and "--line" in refused.stderr
    assert run("rollback", where(place), "--to", "5", "--line", "0.2.0").exit_code == 0
    assert steps(place)[0] == 5
    assert run("rollback", where(place), "--to", "7", "--line", line.id).exit_code == 0
    assert steps(place)[0] == 7


def test_a_live_run_is_named_and_keeps_its_namespace(place: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    place.tier.write_claim(CLAIM)
    beats = iter(range(1, 9))
    monkeypatch.setattr(rollback.time, "sleep", lambda _: place.tier.write_claim(replace(CLAIM, beat=next(beats))))
    refused = run("rollback", where(place), "--to", "3")
    assert refused.exit_code == 1 and "in use by job 7 of user ann on n1" in refused.stderr
    assert place.tier.lines() == []
    place.tier.write_claim(replace(CLAIM, released=True))
    assert run("rollback", where(place), "--to", "3").exit_code == 0


def test_gc_removes_left_lines_only_when_it_is_told_to(place: Stored) -> None:
    place.commit(of(forked(FIRST, 3, 1), 4))
    planned = run("gc", where(place), "--keep", "9", "--left", "--dry-run")
    assert "2 steps" in planned.stdout and len(steps(place)) == 4
    assert run("gc", where(place), "--keep", "9").exit_code == 0 and len(steps(place)) == 4
    assert run("gc", where(place), "--keep", "9", "--left").exit_code == 0
    assert steps(place) == [4, 3]


def test_an_import_is_what_the_next_start_restores(place: Stored, tmp_path: Path) -> None:
    source = tmp_path / "dcp"
    dcp.save({"w": torch.arange(3)}, checkpoint_id=source, no_dist=True)
    said = run("import", source, where(place), "--step", "2")
    assert said.exit_code == 0 and "the next start restores it" in said.stdout
    assert "stays aside: steps 3 to 5 (3 steps)" in said.stdout
    assert steps(place) == [2, 5, 4, 3]


def test_a_copy_never_mixes_unrelated_lines(place: Stored, tmp_path: Path, server: S3Server) -> None:
    (tmp_path / "there").mkdir()
    there = stored("shared", tmp_path / "there", server.options)
    line = forked(FIRST, None, 1)
    there.commit(of(line, 9))
    to = os.path.dirname(there.tier.where)
    refused = run("copy", where(place), to)
    assert refused.exit_code == 2 and f"line {line.id}" in refused.stderr and "empty place" in refused.stderr
    assert "the line of Holdfast 0.2.0" in refused.stderr and steps(there) == [9]
    place.commit(of(line, 9))
    run("rollback", where(place), "--to", "3", "--line", "0.2.0")
    assert run("copy", where(place), to).exit_code == 0
    assert steps(there)[0] == 3 and sorted(steps(there)) == [3, 4, 5, 9]
