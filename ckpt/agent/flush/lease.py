"""This run's claim on its namespace, in the tiers that all nodes see: taken before the restore, then renewed."""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import secrets
import threading
import time
from dataclasses import replace

from ckpt.agent.context import Context
from ckpt.agent.flush.run_liveness import has_ended, identity_of, process_has_ended
from ckpt.agent.storage_calls import in_thread, in_time
from ckpt.errors import AgentError, CheckpointError, ConfigError, CorruptError, NamespaceError
from ckpt.tiers.claim import Claim
from ckpt.tiers.s3_client import AccessError
from ckpt.tiers.tier import Tier

_BEATS_MISSED = 1.2  # for a claim whose run's process is gone; agents may outlive it

log = logging.getLogger(__name__)


class Lease:
    """The claim, held by node rank 0 for all nodes.

    Every wait for a tier ends after `answer_s`, so a dead tier blocks nobody.
    """

    def __init__(self, context: Context) -> None:
        place = context.place
        self._tiers = {name: tier for name, tier in context.tiers.items() if not tier.node_local}
        self._namespace = context.config.namespace
        self._listener = context.listener
        self._deadlines = context.deadlines
        self._ended_command = place.ended_command
        self._claim = Claim(
            run_id=place.run_id, attempt=place.attempt, nonce=secrets.token_hex(8), user=_user(), host=place.node,
            job=place.job, since_s=time.time(), process=identity_of(place.run_pid) if place.run_pid else "",
            name=place.owner.name, script=place.owner.script,
        )  # fmt: skip
        self._preparing = {name: threading.Lock() for name in self._tiers}
        self._taken = asyncio.Event()
        self._held: set[str] = set()  # tiers with this run's claim
        self._lost: dict[str, str] = {}  # tiers that another run has taken, with the reason to stay away
        self._refused: dict[str, str] = {}  # tiers whose namespace may not be used, with the reason
        self._made_s: dict[str, float] = {}  # when a tier's folder was made, as it was claimed
        self._silent: set[str] = set()  # tiers that did not answer last time, which is logged once

    async def take(self) -> None:
        """Claims the namespace in every tier that responds.

        Raises:
            AgentError: another live run has it. The message names that run.
        """
        await asyncio.gather(*(self._take(name, tier) for name, tier in self._tiers.items()))
        self._taken.set()

    async def run(self) -> None:
        """Renews the claims until cancelled, once they have been taken."""
        await self._taken.wait()
        while True:
            await asyncio.sleep(self._deadlines.beat_s)
            self._claim = replace(self._claim, beat=self._claim.beat + 1)
            await asyncio.gather(*(self._renew(name, tier) for name, tier in self._tiers.items()))

    async def release(self) -> None:
        """Marks the claims as released at the run's end, so that the next run need not watch them."""
        self._claim = replace(self._claim, released=True)
        held = [self._renew(name, tier) for name, tier in self._tiers.items() if name in self._held]
        await asyncio.gather(*held)

    def check(self, name: str) -> None:
        """Raises AgentError if the namespace in a tier belongs to another run or user. Then this run must not write
        there."""
        reason = self._lost.get(name) or self._refused.get(name)
        if reason is not None:
            raise AgentError(reason)

    async def prepare(self, name: str, timeout_s: float) -> None:
        """Makes a tier's folder, or checks that it is still the claimed one; before a write.

        Raises:
            AgentError: another run has it; its folder did not answer in time; or another file system came over it.
        """
        await self._recognise(name, timeout_s)
        if name not in self._held:  # it has not answered yet
            await self._renew(name, self._tiers[name])
            self.check(name)

    async def _recognise(self, name: str, timeout_s: float) -> None:
        """Raises AgentError if the folder was made earlier than the claimed one, so that it has steps of its own."""
        made_s = await in_time(timeout_s, self._prepare, name)
        claimed_s = self._made_s.setdefault(name, made_s)
        if made_s < claimed_s:
            self._lost[name] = (
                f"another folder has come to {self._tiers[name].where}, made before the one that this run has used. "
                "Was its file system mounted meanwhile? Start the job again to continue its steps"
            )
            self._listener.problem(f"nothing goes to the {name} tier any more", self._lost[name])
            raise AgentError(self._lost[name])
        if made_s > claimed_s:
            self._made_s[name] = made_s
            self._listener.problem(f"the folder of the {name} tier was made again", "it was removed, or is not mounted")

    def _prepare(self, name: str) -> float:
        """Runs in a thread. Two that make the same folder at once would give it different times."""
        with self._preparing[name]:
            return self._tiers[name].prepare()

    async def _take(self, name: str, tier: Tier) -> None:
        try:
            self._made_s[name] = await in_time(self._deadlines.answer_s, self._prepare, name)
            found = await in_time(self._deadlines.answer_s, tier.read_claim)
            if found is not None and (why := found.why_not_for(self._claim)) is not None:
                raise NamespaceInUse(f"namespace {self._namespace} in the {name} tier {why}")
            if found is not None and not found.yields_to(self._claim):
                await self._outlive(name, tier, found)
            await in_time(self._deadlines.answer_s, tier.write_claim, self._claim)
            self._held.add(name)
        except NamespaceInUse:
            raise
        except (NamespaceError, ConfigError, PermissionError, AccessError) as error:
            self._silent.add(name)
            self._refused[name] = str(error)
            self._listener.problem(f"nothing can be saved to the {name} tier", str(error))
        except (CheckpointError, OSError) as error:
            self._unanswered(name, error)

    async def _outlive(self, name: str, tier: Tier, found: Claim) -> None:
        """Returns once the other run has ended, or was silent for `quiet_s`. Raises NamespaceInUse if it is alive.

        It has ended if the launcher says so, or if its process on this machine is gone and no agent renews the claim.
        Otherwise only silence shows it.
        """
        log.warning(
            "%s tier: claimed by %s; watching for %g s whether it is alive", name, found, self._deadlines.quiet_s
        )
        started, is_reported = time.monotonic(), False
        while time.monotonic() < started + self._deadlines.quiet_s:
            silent_s = time.monotonic() - started
            if silent_s > _BEATS_MISSED * self._deadlines.beat_s and process_has_ended(found.process):
                log.warning("%s tier: the process of %s is gone: taken over", name, found)
                return
            if await in_thread(has_ended, self._ended_command, found.run_id, self._deadlines.answer_s):
                log.warning("%s tier: %s has ended: taken over", name, found)
                return
            if not is_reported:
                is_reported = True
                waits = f"by {found}; the job starts in {self._deadlines.quiet_s:g} s unless that run is alive"
                self._listener.problem(f"the namespace is claimed in the {name} tier", waits)
            await asyncio.sleep(self._deadlines.beat_s / 2)
            now = await in_time(self._deadlines.answer_s, tier.read_claim)
            if now is None or now.yields_to(self._claim):
                return
            if now != found:
                raise NamespaceInUse(
                    f"namespace {self._namespace} is in use in the {name} tier by {now}; wait for it to end, "
                    "cancel it, or choose another namespace"
                )
        log.warning("%s tier: %s has given no sign of life for %g s: taken over", name, found, self._deadlines.quiet_s)

    async def _renew(self, name: str, tier: Tier) -> None:
        """Renews the claim in a tier.

        Also claims a tier that did not respond before, or whose namespace could not be used.
        """
        if name in self._lost:
            return
        try:
            if name not in self._held:
                await self._recognise(name, self._deadlines.answer_s)
            found = await self._found(name, tier)
            if found is not None and found.nonce != self._claim.nonce and not found.yields_to(self._claim):
                taken = "was taken over" if name in self._held else "is in use"
                self._lost[name] = f"namespace {self._namespace} {taken} in the {name} tier by {found}"
                self._listener.problem(f"nothing goes to the {name} tier any more", self._lost[name])
                return
            await in_time(self._deadlines.answer_s, tier.write_claim, self._claim)
            self._held.add(name)
            self._silent.discard(name)
            self._refused.pop(name, None)
        except (CheckpointError, OSError) as error:
            self._unanswered(name, error)

    async def _found(self, name: str, tier: Tier) -> Claim | None:
        """The claim in a tier; None if there is none, or if this run's own claim was damaged."""
        try:
            return await in_time(self._deadlines.answer_s, tier.read_claim)
        except CorruptError as error:
            if name not in self._held:
                raise
            log.warning("%s tier: claimed again: %s", name, error)
            return None

    def _unanswered(self, name: str, error: Exception) -> None:
        if name not in self._silent:
            self._silent.add(name)
            self._listener.problem(f"namespace not claimed in the {name} tier", str(error))


class NamespaceInUse(AgentError):
    """Another live run has the namespace."""


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
