"""One pass over all nodes. Nodes that Holdfast has drained are healed; with `heal: off` they are only listed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from lifecycle.errors import LifecycleError
from lifecycle.heal.case import WAITS, Cases, HealOutcome
from lifecycle.heal.history import BY_HAND, LEMON, HealEvent, HealHistory
from lifecycle.heal.policy import held_back, next_action
from lifecycle.heal.settings import HealSettings
from slurm import command
from slurm.client import Slurm
from slurm.command import CommandRunner
from slurm.errors import SlurmError
from slurm.hooks.drains import OUT, is_ours, reason, whose, why
from slurm.records import Node

_RELEASE_S = 120.0  # the longest time of an epilog
_LEMON = "lemon: "  # follows the tag in the drain reason of a node that healing has given up


class Healer:
    """Heals a cluster, one pass at a time."""

    def __init__(
        self,
        slurm: Slurm,
        settings: HealSettings,
        history: HealHistory,
        *,
        run: CommandRunner = command.run,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            slurm: the cluster.
            settings: the settings of healing.
            history: past actions and open cases; locked by `only_one`.
            run: runs the administrator's command.
            now_s: returns the time, Unix seconds.
        """
        self._slurm = slurm
        self._settings = settings
        self._history = history
        self._now_s = now_s
        self._cases = Cases(slurm, settings, history, now_s, run)

    def look(self) -> list[HealOutcome]:
        """One pass. An error of Slurm's about one node does not delay the others.

        Raises:
            SlurmError: Slurm does not answer.
            LifecycleError: the history cannot be written.
        """
        nodes = self._slurm.nodes()
        found = []
        if self._settings.is_on:
            self._cases.release_strays()
        for case in list(self._history.cases.values()):
            if self._settings.is_on:
                found.append(self._try(case.node, partial(self._cases.go_on, case, nodes)))
            else:
                found.append(HealOutcome(node=case.node, what=WAITS, why="half healed; `heal: on` goes on with it"))
        busy = {outcome.node for outcome in found}
        for node in nodes:
            if is_ours(node) and node.name not in busy and not why(node).startswith(_LEMON):
                found.append(self._try(node.name, partial(self._take, node, nodes)))
        return found

    def bring_back(self, name: str, wait: Callable[[HealOutcome], None]) -> HealOutcome:
        """Returns a repaired node to service if it passes the check. Continues an interrupted call.

        Args:
            name: the node.
            wait: called between two looks at the node, with a text about what it waits for.

        Raises:
            LifecycleError: Holdfast has not drained the node, or the node failed the check.
        """
        node = self._node(name)
        self._cases.release_strays()  # left by a call that was killed after the check
        begun = self._history.cases.get(name)
        if begun is not None and begun.action != BY_HAND:
            raise LifecycleError(f"{name}: it is being healed already; `holdfast node heal` shows how far it is")
        outcome = self._begin_by_hand(node) if begun is None else self._cases.go_on(begun, self._slurm.nodes())
        while name in self._history.cases:
            wait(outcome)
            outcome = self._cases.go_on(self._history.cases[name], self._slurm.nodes())
        deadline_s = self._now_s() + _RELEASE_S
        while self._cases.strays():
            if self._now_s() > deadline_s:
                raise LifecycleError(
                    f"{name}: {outcome.what}, but Slurm did not let go of {', '.join(self._cases.strays())} within "
                    f"{_RELEASE_S:g} s; scontrol delete ReservationName=... makes it whole"
                )
            wait(outcome)
            self._cases.release_strays()
        return outcome

    def _begin_by_hand(self, node: Node) -> HealOutcome:
        if not node.flags & OUT:
            raise LifecycleError(f"{node.name}: not drained ({node.state}); nothing to return")
        if not is_ours(node):
            raise LifecycleError(
                f"{node.name}: drained by {whose(node)}, not by holdfast: {why(node)}; if you may undo that: "
                f"scontrol update NodeName={node.name} State=RESUME"
            )
        return self._cases.begin(node, BY_HAND, why(node).removeprefix(_LEMON))

    def _take(self, node: Node, nodes: Sequence[Node]) -> HealOutcome:
        """Starts healing a node that our hooks have drained."""
        cause, now_s = why(node), self._now_s()
        action, said = next_action(self._history.of(node.name), self._settings, now_s)
        if action == LEMON:
            return self._give_up(node, f"{said}; {cause}")
        limit = held_back(self._history, self._settings, len(nodes), now_s)
        if limit:
            return HealOutcome(node=node.name, what=WAITS, why=f"{action} held back: {limit}")
        if not self._settings.is_on:
            return HealOutcome(node=node.name, what=f"would {action}", why=f"{cause} ({said})")
        return self._cases.begin(node, action, cause)

    def _give_up(self, node: Node, said: str) -> HealOutcome:
        if not self._settings.is_on:
            return HealOutcome(node=node.name, what=f"would be a {LEMON}", why=said)
        event = HealEvent(time_s=round(self._now_s(), 3), node=node.name, what=LEMON, why=said)
        self._history.note(event, None)
        self._slurm.drain(node.name, reason(_LEMON + said))
        return HealOutcome(node=node.name, what=LEMON, why=said)

    def _try(self, node: str, step: Callable[[], HealOutcome]) -> HealOutcome:
        try:
            return step()
        except SlurmError as error:
            return HealOutcome(node=node, what=WAITS, why=f"tried again at the next look: {error}")

    def _node(self, name: str) -> Node:
        found = {node.name: node for node in self._slurm.nodes()}
        if name not in found:
            raise LifecycleError(f"{name}: Slurm knows no such node; sinfo -N lists them")
        return found[name]
