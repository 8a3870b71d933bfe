"""Lightning's Trainer ends with what an undisturbed run ends with, whatever happens on its way."""

from __future__ import annotations

from pathlib import Path

import pytest
from disturbed import KILLED, LOST, broken, ends, samples, undisturbed

pytest.importorskip("lightning")

SCRIPT = "lightning_script.py"
PRELOAD = ["lightning.pytorch", "torchmetrics"]

pytestmark = pytest.mark.long(seconds=40)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return undisturbed(SCRIPT, tmp_path_factory.mktemp("bare") / "out", preload=PRELOAD)


def test_a_killed_worker_and_a_lost_node_change_nothing(tmp_path: Path, bare: Path) -> None:
    """Weights, optimizer, samples, loops, callbacks, the best model, and all that was logged."""
    out = broken(SCRIPT, tmp_path, KILLED, LOST, env={}, preload=PRELOAD)
    assert samples(out) == samples(bare)
    assert ends(out) == ends(bare)


def test_workers_of_a_loader_and_a_smaller_world_see_each_sample_once(tmp_path: Path) -> None:
    """A node is lost and there is no spare: one rank goes on, which accumulates more. All epochs have whole steps."""
    env = {"WORKERS": "1", "SAMPLES": "96"}
    bare = undisturbed(SCRIPT, tmp_path / "bare", ranks=1, preload=PRELOAD, **env)
    elastic = {"min_nodes": 1, "scaling_timeout_s": 1}
    out = broken(SCRIPT, tmp_path, "0:1:10:9:wait", env=env, nodes=2, spares=0, elastic=elastic, preload=PRELOAD)
    assert {step: sorted(ids) for step, ids in samples(out).items()} == {
        step: sorted(ids) for step, ids in samples(bare).items()
    }
    for kept in ("counters", "loops"):
        assert ends(out)[0][kept] == ends(bare)[0][kept]


@pytest.mark.faults
def test_fsdp2_continues_after_a_kill_and_a_lost_node(tmp_path: Path) -> None:
    env = {"FSDP": "1"}
    bare = undisturbed(SCRIPT, tmp_path / "bare", preload=PRELOAD, **env)
    out = broken(SCRIPT, tmp_path, KILLED, LOST, env=env, preload=PRELOAD)
    assert samples(out) == samples(bare)
    assert ends(out) == ends(bare)
