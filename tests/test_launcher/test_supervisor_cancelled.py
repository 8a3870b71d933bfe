"""A job that is cancelled while it loses a node: Slurm would start it again if the supervisor handed it back."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from talkers import Talkers, supervised

from launcher.connections.channel import Channel
from launcher.core.stop_reasons import StopReason
from launcher.errors import NoAnswer
from launcher.leadership import requeue

HANDED_BACK = "handed-back"


class LosesANode(Talkers):
    """The last node is lost as soon as its workers have started; there is no spare."""

    meaning = "preempted"  # of a RUNNING job

    def started(self, node: str, channel: Channel, attempt: dict[str, Any]) -> None:
        if node == self.nodes[-1]:
            channel.abort()

    def why_terminated(self) -> StopReason:
        return StopReason(self.meaning)

    def requeue(self, exclude: Collection[str] = ()) -> None:
        (self._job_dir / HANDED_BACK).touch()


class IsNotAnswered(LosesANode):
    """Slurm does not answer the first requests."""

    asked = 0

    def requeue(self, exclude: Collection[str] = ()) -> None:
        self.asked += 1
        if self.asked <= 2:
            raise NoAnswer("Unable to contact slurm controller")
        super().requeue(exclude)


class IsBeingCancelled(LosesANode):
    """Slurm knows; its SIGTERM has yet to come."""

    meaning = "cancel"


class IsTold(IsBeingCancelled):
    """The SIGTERM comes between the node's loss and its end."""

    def started(self, node: str, channel: Channel, attempt: dict[str, Any]) -> None:
        super().started(node, channel, attempt)
        if node == self.nodes[-1]:
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)


def test_a_job_that_has_too_few_nodes_is_handed_back(tmp_path: Path) -> None:
    outcome, _ = supervised(tmp_path, LosesANode)
    assert outcome.name == "stopped" and (tmp_path / "job" / HANDED_BACK).exists()


def test_a_job_is_handed_back_once_slurm_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requeue, "ASK_AGAIN_S", 0.01)
    outcome, _ = supervised(tmp_path, IsNotAnswered)
    assert outcome.name == "stopped" and (tmp_path / "job" / HANDED_BACK).exists()


def test_a_job_that_slurm_never_answers_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requeue, "TIMEOUT_S", -1.0)
    outcome, _ = supervised(tmp_path, IsNotAnswered)
    assert outcome.name == "too_few_nodes" and "Unable to contact slurm controller" in outcome.reason


@pytest.mark.parametrize("cluster", [IsBeingCancelled, IsTold])
def test_one_that_is_being_cancelled_ends(tmp_path: Path, cluster: type[LosesANode]) -> None:
    outcome, events = supervised(tmp_path, cluster)
    assert (outcome.name, outcome.exit_code) == ("cancelled", 13)
    assert not (tmp_path / "job" / HANDED_BACK).exists()
    assert events[-1]["event"] == "job_end"
    assert "requeue" not in {event.get("reason") for event in events if event["event"] == "stop_requested"}
