"""Nothing is lost without a word: which steps belong together, which is the newest, and what a user reads of it."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from ckpt.checkpointer import Checkpointer
from ckpt.cli.app import app
from ckpt.config import CheckpointConfig
from ckpt.errors import AgentError, ConfigError
from ckpt.format.atomic_files import MEMORY_ROOT
from ckpt.format.line import FIRST, Owner
from ckpt.format.manifest import NAME
from ckpt.format.shard_record import SaveId, seal_json, unseal_json
from ckpt.tiers.claim import Claim
from ckpt.tiers.last_seen import last_seen, mount_of, remember, seen_elsewhere, why_absent
from ckpt.tiers.posix import SharedTier
from ckpt.worker.standalone.memory_dir import memory_directory, run_id


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    root = MEMORY_ROOT / f"holdfast-{os.getuid()}"
    before = set(root.glob("solo-identity-*"))
    yield
    for path in set(root.glob("solo-identity-*")) - before:
        shutil.rmtree(path)


def forget_memory() -> None:
    """As after a reboot: only the lower tiers are left."""
    for path in (MEMORY_ROOT / f"holdfast-{os.getuid()}").glob("solo-identity-*"):
        shutil.rmtree(path)


def train(
    shared: Path, until: int, *, load: bool | int = True, every: int = 10, keep: int = 3, **section: Any
) -> tuple[int, float]:
    """One run of a script: trains to a step, and saves some. Returns the loaded step, and a weight as it was loaded."""
    state: dict[str, Any] = {"weight": torch.zeros(3)}
    config = {
        "namespace": "identity",
        "memory": {"every_steps": 5},
        "shared": {"path": str(shared), "every_steps": every, "keep": keep},
        **section,
    }
    with Checkpointer(config=config) as ckpt:
        step = 0
        if load is not False:
            step = ckpt.load(state, step=None if load is True else load) or 0
        loaded, weight = step, float(state["weight"][0])
        while step < until:
            state["weight"] += 1
            step += 1
            if ckpt.should_save(step):
                ckpt.save(step, state, flush=step % every == 0)
    return loaded, weight


def stored(shared: Path) -> list[int]:
    """The committed steps, the newest line's first."""
    return [save.step for save in SharedTier(shared, "identity").steps()]


def words(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


def manifests(shared: Path) -> list[Path]:
    return sorted(shared.glob(f"identity/step-*/{NAME}"))


def rewrite(path: Path, **changes: Any) -> None:
    path.write_bytes(seal_json(unseal_json(path.read_bytes()) | changes))


def test_a_run_that_does_not_load_keeps_its_steps_and_those_of_the_run_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, 50)
    assert stored(tmp_path) == [50, 40, 30]
    train(tmp_path, 25, load=False)
    assert "it continues no step, and the newest step is 50" in words(caplog)
    assert stored(tmp_path) == [25, 20, 10, 50, 40, 30]
    assert train(tmp_path, 51) == (25, 25.0), "the newest run's weights, not those with the highest number"
    forget_memory()
    assert train(tmp_path, 51) == (50, 50.0)


def test_two_checkpointers_in_turn_both_keep_their_saves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for phase in (1, 2):
        assert train(tmp_path, 20, load=False)[0] == 0
        assert ("begins line" in words(caplog)) == (phase == 2)
    assert stored(tmp_path) == [20, 10, 20, 10]


def test_a_save_whose_step_is_not_larger_counts_as_failed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = {"weight": torch.zeros(3)}
    with Checkpointer(namespace="identity", shared=tmp_path) as ckpt:
        for _epoch in range(3):
            for step in (5, 10):
                ckpt.save(step, state)
        assert ckpt.failed_saves == 4
    assert "step 10 was saved before it; a step must be larger" in words(caplog)


def test_an_older_step_is_never_taken_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tmp_path, 30)
    forget_memory()
    newest = manifests(tmp_path)[-1]
    newest.write_bytes(b"x" + newest.read_bytes()[1:])
    assert train(tmp_path, 41) == (20, 20.0)
    assert "step 30 passed over: " in words(caplog) and "record does not match its checksum" in words(caplog)
    assert "it continues step 20" in words(caplog), "should the disk come back, step 30 is of another line"
    forget_memory()
    assert train(tmp_path, 41)[0] == 40


def test_steps_of_a_newer_release_stop_the_start_and_are_never_removed(tmp_path: Path) -> None:
    train(tmp_path, 30)
    forget_memory()
    for path in manifests(tmp_path):
        rewrite(path, format=3, since="9.1.0")
    before = manifests(tmp_path)
    with pytest.raises(AgentError, match=r"has steps, and none can be restored: step 30: .*Holdfast 9.1.0 or newer"):
        train(tmp_path, 60)
    assert train(tmp_path, 60, start_fresh=True)[0] == 0
    assert set(before) <= set(manifests(tmp_path)), "retention has left them alone"


def test_a_fresh_start_leaves_the_steps_there_and_later_starts_go_on_from_it(tmp_path: Path) -> None:
    train(tmp_path, 30)
    assert train(tmp_path, 15, start_fresh=True)[0] == 0
    assert stored(tmp_path) == [15, 10, 30, 20, 10]
    assert train(tmp_path, 16) == (15, 15.0)


def test_a_script_that_always_goes_back_damages_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tmp_path, 40)
    for _ in range(3):
        assert train(tmp_path, 40, load=20) == (20, 20.0)
    assert "it continues step 20, and the newest step is 40" in words(caplog)
    assert not list(tmp_path.glob("identity/bad-*")) and len(manifests(tmp_path)) <= 3 + 2 * 2 + 2
    assert train(tmp_path, 41)[0] == 40


def test_after_a_rollback_the_runs_go_on_from_what_they_have_saved_since(tmp_path: Path) -> None:
    train(tmp_path, 40)
    assert CliRunner().invoke(app, ["rollback", str(tmp_path / "identity"), "--to", "20"]).exit_code == 0
    assert train(tmp_path, 30) == (20, 20.0)
    assert train(tmp_path, 31) == (30, 30.0)
    assert stored(tmp_path) == [30, 20, 40, 30], "the steps that were left are of a line of their own"


def test_the_last_step_of_a_run_that_ends_well_is_on_disk(tmp_path: Path) -> None:
    train(tmp_path, 17, every=100)
    forget_memory()
    assert train(tmp_path, 17)[0] == 15


def test_a_project_that_is_renamed_goes_on_and_a_copy_is_its_own(tmp_path: Path) -> None:
    project, moved, copied = (tmp_path / name for name in ("project", "moved", "copied"))
    train(project, 17)
    project.rename(moved)
    shutil.copytree(moved, copied)
    assert train(moved, 27) == (15, 15.0)
    assert train(copied, 16) == (15, 15.0)


def test_two_machines_of_one_name_are_two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CheckpointConfig.from_mapping({"namespace": "identity", "shared": {"path": str(tmp_path)}})
    here = run_id(config, memory_directory(config))
    assert run_id(config, memory_directory(config)) == here
    other = tmp_path / "memory"
    other.mkdir()
    there = run_id(config, other)
    claim = Claim(run_id=here, attempt=1, nonce="a", user="u", host="laptop", job="", since_s=1.5e9)
    assert not claim.yields_to(replace(claim, run_id=there, attempt=2, nonce="b"))
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="renamed"))
    assert claim.yields_to(replace(claim, run_id=here, attempt=2))


def test_a_project_that_finds_anothers_training_at_its_end_hears_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for script, said in (("/a/train.py", ""), ("/a/train.py", ""), ("/a/eval.py", ""), ("/b/train.py", "/a/train.py")):
        monkeypatch.setattr("__main__.__file__", script, raising=False)
        caplog.clear()
        train(tmp_path, 20)
        if said:
            assert f"no step was made: step 20 of namespace identity was loaded, saved by script {said}, user" in words(
                caplog
            )
        else:
            assert not words(caplog), script


def test_a_namespace_belongs_to_a_jobs_name() -> None:
    claim = Claim(
        run_id="r", attempt=1, nonce="a", user="ann", host="h", job="7", since_s=1.5e9, name="gpt",
        script="/a/train.py", released=True,
    )  # fmt: skip
    other = replace(claim, run_id="s", name="bert", script="/b/train.py")
    assert claim.why_not_for(other) == (
        "belongs to job 'gpt' of script /a/train.py (user ann), and this is job 'bert' of script /b/train.py; choose "
        "another `checkpoint.namespace`, or set `name: gpt` to go on with its steps"
    )
    assert claim.why_not_for(replace(other, name="gpt")) is None
    assert claim.why_not_for(replace(other, name="")) is None, "a start without the launcher has no name"


def test_a_cell_that_runs_again_takes_the_namespace_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = Checkpointer(namespace="identity", shared=tmp_path)
    first.save(1, {"weight": torch.zeros(3)})
    second = Checkpointer(namespace="identity", shared=tmp_path)
    assert "the Checkpointer that this process has open is closed" in words(caplog)
    with pytest.raises(ConfigError, match="this Checkpointer is closed; make another one"):
        first.save(2, {"weight": torch.zeros(3)})
    assert second.newest_step == 1
    second.close()


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a file system needs root")
def test_a_shared_directory_that_is_not_mounted_stops_the_start(tmp_path: Path) -> None:
    shared = tmp_path / "disk"
    shared.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700", "tmpfs", shared], check=True)
    try:
        train(shared, 30)
        forget_memory()
    finally:
        subprocess.run(["umount", "--lazy", shared], check=True)
    with pytest.raises(AgentError, match=r"step 30 was saved in .*disk/identity on .* on the file system at .*disk;"):
        train(shared, 40)
    assert train(shared, 10, start_fresh=True)[0] == 0


def test_steps_that_are_not_there_any_more_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An older copy has come back in the place of the directory, or it was emptied."""
    shared, copy = tmp_path / "shared", tmp_path / "copy"
    train(shared, 20)
    shutil.copytree(shared, copy)
    train(shared, 40, every=20)
    for path in shared.glob("identity/step-*"):
        shutil.rmtree(path)
    shutil.copytree(copy, shared, dirs_exist_ok=True)
    train(shared, 41, every=1000)
    gone = f"step 40 was saved in {shared}/identity on "
    assert f"namespace identity: {gone}" in words(caplog) and "Step 40 is restored" in words(caplog)
    shutil.rmtree(shared)
    shutil.copytree(copy, shared)
    forget_memory()
    assert train(shared, 21)[0] == 20
    assert f"step 40 passed over: {gone}" in words(caplog)
    shutil.rmtree(shared)
    forget_memory()
    caplog.clear()
    assert train(shared, 5)[0] == 0
    assert f"step 40 passed over: {gone}" in words(caplog)


def test_a_job_that_has_saved_elsewhere_hears_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A relative path of the job file leads to another directory, because the file has moved."""
    monkeypatch.setattr("__main__.__file__", "/a/train.py", raising=False)
    train(tmp_path / "before", 10)
    assert train(tmp_path / "after", 5)[0] == 0
    there = f"this job has saved elsewhere: step 10 was saved in {tmp_path}/before/identity on "
    assert there in words(caplog)


def test_what_is_remembered_of_a_folder_helps_only_its_own_script_and_may_be_damaged(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    folder, other, owner = tmp_path / "a" / "ns", tmp_path / "b" / "ns", Owner(name="gpt", script="/train.py")
    assert last_seen(folder, env) is None and why_absent(folder, env) is None and not seen_elsewhere(folder, owner, env)
    line = FIRST.fork(None, number=1, began_s=0.0, seed="a", owner=owner)
    save = SaveId(step=30, attempt=0, run_id="r", line=line)
    remember(folder, save, owner, env)
    assert why_absent(folder, env) is None, "it was removed from the same file system"
    seen = last_seen(folder, env)
    assert seen is not None and not seen.is_among([])
    for step, of, is_among in (
        (30, line, True),
        (29, line, False),
        (31, line.fork(30, number=2, began_s=0.0, seed="on", owner=owner), True),
        (31, line.fork(20, number=2, began_s=0.0, seed="back", owner=owner), False),
    ):
        assert seen.is_among([replace(save, step=step, line=of)]) == is_among
    assert seen_elsewhere(other, owner, env) is None, "it was removed"
    folder.mkdir(parents=True)
    roundabout = replace(owner, script="/conf/../train.py")
    assert (
        seen_elsewhere(other, roundabout, env) == seen_elsewhere(other, owner, env) == seen
        and seen_elsewhere(folder, owner, env) is None
    )
    for stranger in (replace(owner, name="bert"), replace(owner, script="/other.py")):
        assert seen_elsewhere(other, stranger, env) is None
    assert seen_elsewhere(tmp_path / "b" / "another", owner, env) is None
    file = next((tmp_path / "state" / "holdfast" / "namespaces").iterdir())
    file.write_text(json.dumps(json.loads(file.read_text()) | {"mount": "/scratch"}))
    assert f"on the file system at /scratch; now that folder is on the file system at {mount_of(folder)}" in (
        why_absent(folder, env) or ""
    )
    for text in ("", "[]", "{", '{"mount": 1}', "[" * 5000, file.read_text().replace("30", '"30"')):
        file.write_text(text)
        assert last_seen(folder, env) is None and why_absent(folder, env) is None


def test_whatever_a_user_does_no_start_takes_fewer_steps_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A random week without a launcher; those of agents alone are in test_identity_weeks.py."""
    rng = random.Random(1)
    shared, reached = tmp_path / "week", 0
    for turn in range(6):
        deed = rng.choice(("load", "load", "no load", "back", "rename", "copy", "reboot", "damage", "format"))
        paths = manifests(shared) if shared.exists() else []
        if deed in ("rename", "copy") and paths:
            target = tmp_path / f"week-{turn}"
            shared.rename(target) if deed == "rename" else shutil.copytree(shared, target)
            shared = target
        elif deed in ("reboot", "damage", "format"):
            forget_memory()
            if paths and deed == "damage":
                path = paths[-1]
                path.write_bytes(path.read_bytes()[:-5])
            elif paths and deed == "format":
                rewrite(paths[-1], format=3)
        load: bool | int = deed != "no load"
        if deed == "back" and (steps := stored(shared) if shared.exists() else []):
            load = rng.choice(steps)
        caplog.clear()
        try:
            loaded, weight = train(shared, (reached if load else 0) + 10 * rng.randint(1, 2), load=load)
        except AgentError as error:
            assert "none can be restored" in str(error), "the start is refused, with the reasons"
            train(shared, 10, start_fresh=True)
            reached = 10
            continue
        assert weight == loaded, "a step has the weights of its own line"
        if loaded < reached:
            assert "begins line" in words(caplog) or "passed over" in words(caplog), (deed, loaded, reached)
        reached = stored(shared)[0]
