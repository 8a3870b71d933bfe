"""Which nodes the scheduler drains: asked for at long intervals, told to the core on change, in a user's words."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, cast

import pytest

from launcher.clusters.slurm.drained import in_words
from launcher.core.inputs import NodesDrained
from launcher.scheduler.cluster import Cluster
from launcher.supervisor import drains
from slurm import SlurmError
from slurm.records import DrainedNode


class Answers:
    """A cluster that answers in this order, and then ends the test."""

    def __init__(self, *answers: dict[str, str] | SlurmError) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, ...]] = []

    def drained(self, nodes: Collection[str]) -> dict[str, str]:
        self.asked.append(tuple(nodes))
        if not self._answers:
            raise EOFError
        answer = self._answers.pop(0)
        if isinstance(answer, SlurmError):
            raise answer
        return answer


def followed(cluster: Answers, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The inputs of the core."""
    monkeypatch.setattr(drains, "LOOK_S", 0.0)
    inputs: list[Any] = []
    with pytest.raises(EOFError):
        asyncio.run(drains.follow_drains(cast("Cluster", cluster), lambda: ("n1", "n2"), inputs.append))
    return inputs


def test_the_core_hears_of_changes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Answers({}, {"n2": "a fan"}, {"n2": "a fan"}, {})
    assert followed(cluster, monkeypatch) == [NodesDrained(reasons={"n2": "a fan"}), NodesDrained(reasons={})]
    assert set(cluster.asked) == {("n1", "n2")}


def test_a_scheduler_that_does_not_answer_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Answers({"n2": "a fan"}, SlurmError("no answer"), {"n2": "a fan"})
    assert followed(cluster, monkeypatch) == [NodesDrained(reasons={"n2": "a fan"})]
    assert "which nodes are drained is not known: no answer" in caplog.text


@pytest.mark.parametrize(
    ("user", "reason", "words"),
    [
        ("alice", "a broken fan", "drained by alice: a broken fan"),
        ("alice", "", "drained by alice: no reason given"),
        ("root", "holdfast: gpu_ecc: 2 uncorrectable", "its health check failed: gpu_ecc: 2 uncorrectable"),
        ("root", "Action:Replace", "HyperPod replaces it (Action:Replace, by root)"),
        ("slurm", "Action:Reboot", "HyperPod reboots it (Action:Reboot, by slurm)"),
    ],
)
def test_the_reason_says_who_wants_the_node(user: str, reason: str, words: str) -> None:
    assert in_words(DrainedNode(name="n1", user=user, reason=reason)) == words
