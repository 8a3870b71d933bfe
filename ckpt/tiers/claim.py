"""Which run a namespace belongs to while it lives, as written in a tier: no two live runs write to one namespace.

The run's first agent counts `beat` up every few seconds. Who finds the claim of another run watches that number by its
own clock: clocks of two machines are never compared, and a run that was killed needs no farewell.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, fields

from ckpt.errors import CorruptError
from ckpt.format.atomic_files import dump_json

CLAIM = "owner.json"
MAX_BYTES = 65536


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One run's word that a namespace is its own. User, host, job and since_s are for people: they decide nothing.

    `process` is the one that the run ends with (`ckpt.tiers.run_process`). "": it is not known.
    """

    run_id: str
    attempt: int
    nonce: str  # of the process that writes it
    user: str
    host: str
    job: str  # Slurm's number; "" outside Slurm
    since_s: float  # CLOCK_REALTIME
    process: str = ""
    beat: int = 0
    released: bool = False  # the run has ended in peace

    def to_bytes(self) -> bytes:
        return dump_json(asdict(self))

    def yields_to(self, other: Claim) -> bool:
        """Whether `other` may take the namespace over at once: the same run's later attempt, or this one has ended."""
        return self.released or (self.run_id == other.run_id and self.attempt <= other.attempt)

    def __str__(self) -> str:
        job = f"job {self.job}" if self.job else f"run {self.run_id}"
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since_s))
        return f"{job} of user {self.user} on {self.host} (attempt {self.attempt}, since {since})"


def parse_claim(data: bytes, where: str) -> Claim:
    """Raises CorruptError for what is none: a stranger may have written it."""
    try:
        value = json.loads(data[:MAX_BYTES])
        claim = Claim(**{field.name: value[field.name] for field in fields(Claim)})
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptError(f"{where}: cannot be read ({type(error).__name__}: {error}); remove it") from None
    kinds = {"str": str, "int": int, "float": float, "bool": bool}
    for field in fields(Claim):
        if type(getattr(claim, field.name)) is not kinds[str(field.type)]:
            raise CorruptError(f"{where}: {field.name} is {getattr(claim, field.name)!r:.40}; remove it")
    if not -1e10 < claim.since_s < 1e11:
        raise CorruptError(f"{where}: since_s is {claim.since_s!r:.40}; remove it")
    return claim
