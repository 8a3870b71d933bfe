"""The claim of a run to a namespace, a file in each tier, so that no two live runs write to one namespace.

The run's first agent increments `beat` every few seconds. A run that finds the claim of another run watches whether
that number changes, by its own clock. So clocks of two machines are never compared, and the claim of a killed run needs
no removal.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, fields

from ckpt.errors import CorruptError
from ckpt.format.atomic_files import dump_json

CLAIM = "owner.json"
MAX_CLAIM_BYTES = 65536
_SINCE_0_3 = ("name", "script")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The claim of one run. user, host, job and since_s are only for messages.

    `process` is the process with which the run ends (`identity_of` names it); "" if it is not known.
    """

    run_id: str
    attempt: int
    nonce: str  # random text of the process that writes the claim
    user: str
    host: str
    job: str  # Slurm's job id; "" outside Slurm
    since_s: float  # CLOCK_REALTIME
    process: str = ""
    beat: int = 0
    released: bool = False  # the run has ended normally
    name: str = ""  # the job's name, to which the namespace belongs; "" without a launcher
    script: str = ""  # its script

    def to_bytes(self) -> bytes:
        return dump_json(asdict(self))

    def yields_to(self, other: Claim) -> bool:
        """Whether `other` may take the namespace at once: it is the same run's later attempt, or this run has ended."""
        return self.released or (self.run_id == other.run_id and self.attempt <= other.attempt)

    def why_not_for(self, other: Claim) -> str | None:
        """Why `other` may not have the namespace, even after this run's end: it is of a job of another name."""
        if not self.name or not other.name or self.name == other.name:
            return None
        way_out = f"choose another `checkpoint.namespace`, or set `name: {self.name:.200}` to go on with its steps"
        return f"belongs to {self._job} (user {self.user:.40}), and this is {other._job}; {way_out}"

    @property
    def _job(self) -> str:
        return f"job {self.name!r:.200}" + (f" of script {self.script:.400}" if self.script else "")

    def __str__(self) -> str:
        job = f"job {self.job}" if self.job else f"run {self.run_id}"
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since_s))
        return f"{job} of user {self.user} on {self.host} (attempt {self.attempt}, since {since})"


def parse_claim(data: bytes, where: str) -> Claim:
    """Read a claim, which another user may have written.

    Raises:
        CorruptError: the data are not a claim.
    """
    try:
        value = json.loads(data[:MAX_CLAIM_BYTES])
        optional = {name: value.get(name, "") for name in _SINCE_0_3}
        claim = Claim(**{field.name: {**value, **optional}[field.name] for field in fields(Claim)})
    except (AttributeError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptError(f"{where}: cannot be read ({type(error).__name__}: {error}); remove it") from None
    kinds = {"str": str, "int": int, "float": float, "bool": bool}
    for field in fields(Claim):
        if type(getattr(claim, field.name)) is not kinds[str(field.type)]:
            raise CorruptError(f"{where}: {field.name} is {getattr(claim, field.name)!r:.40}; remove it")
    if not -1e10 < claim.since_s < 1e11:
        raise CorruptError(f"{where}: since_s is {claim.since_s!r:.40}; remove it")
    return claim
