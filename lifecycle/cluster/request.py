"""What the user asks for, and the groups of nodes and the settings of Slurm that follow from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lifecycle.errors import NodeUsageError
from lifecycle.instance import Expected, expected, known_types
from slurm.conf import hook_lines
from slurm.preemption_conf import GRACE_S

Kind = Literal["hyperpod", "parallelcluster", "pcs"]
Capacity = Literal["ondemand", "block", "spot"]

BOOST = "boost"  # the partition of boosters, over all nodes
_EXTRA = "extra"  # the group of the nodes that only boosters use
_NAME = re.compile(r"[A-Za-z](?:-?[A-Za-z0-9]){2,24}")
_BUCKET = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\s'\"\\$`]*)?")
_RESERVED = (BOOST, _EXTRA, "controller", "login")


@dataclass(frozen=True, kw_only=True)
class Group:
    """Nodes of one kind in one partition of their own.

    Attributes:
        name: the group's name, and its partition's.
        nodes: the number of nodes.
        is_fixed: whether all nodes run from the start and to the end; False for nodes that come and go.
        capacity: how EC2 is asked for them.
    """

    name: str
    nodes: int
    is_fixed: bool
    capacity: Capacity


@dataclass(frozen=True, kw_only=True)
class ClusterRequest:
    """A cluster as the user asks for it.

    Attributes:
        nodes: nodes that train; with teams, the sum of theirs.
        spares: further nodes of each team, or of the cluster without teams.
        boosters: further nodes that only boosters use.
        teams: name -> nodes.
        wheel: the package that nodes install.
        scripts: s3://bucket/prefix to which create.sh uploads the scripts.
        role: HyperPod: the execution role; PCS: the instance profile.
        fsx: id of an existing Lustre file system; empty if there is none, or if one is to be made.
        fsx_mountname: its mount name.
        fsx_gib: size of a Lustre file system to be made.
        data: buckets (s3://bucket/prefix): associated with Lustre, or mounted by Mountpoint without it.
        training_plan: ARN of a training plan of HyperPod.
        reservation: id of a capacity reservation of EC2.
        database: host[:port] of the database of slurmdbd; PCS needs none.
        database_secret: ARN of the secret with its password.
        image: id of the machine image, for PCS.
    """

    kind: Kind
    name: str
    region: str
    instance: str
    nodes: int
    spares: int
    boosters: int
    booster_capacity: Capacity
    teams: dict[str, int]
    capacity: Capacity
    controller_instance: str
    wheel: Path
    scripts: str
    subnet: str
    security_group: str
    role: str
    fsx: str
    fsx_mountname: str
    fsx_gib: int
    data: tuple[str, ...]
    training_plan: str
    reservation: str
    database: str
    database_secret: str
    has_accounting: bool
    slurm_version: str
    image: str
    torch: str

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise NodeUsageError("\n".join(problems))

    @property
    def machine(self) -> Expected:
        """The hardware of the nodes."""
        found = expected(self.instance)
        if found is None:
            raise NodeUsageError(
                f"--instance: got {self.instance}, expected one of {', '.join(known_types())}: the number of EFA "
                "interfaces of other types is not known"
            )
        return found

    @property
    def groups(self) -> list[Group]:
        """The groups of nodes, those that train first."""
        named = self.teams or {"base": self.nodes}
        base = [
            Group(name=name, nodes=count + self.spares, is_fixed=True, capacity=self.capacity)
            for name, count in named.items()
        ]
        more = Group(name=_EXTRA, nodes=self.boosters, is_fixed=False, capacity=self.booster_capacity)
        return [*base, more] if self.boosters else base

    @property
    def is_elastic(self) -> bool:
        """Whether there is a partition for boosters: they have nodes of their own, or teams lend theirs."""
        return bool(self.boosters or self.teams)

    @property
    def script_url(self) -> str:
        return self.scripts.rstrip("/")

    @property
    def makes_fsx(self) -> bool:
        return self.fsx_gib > 0

    @property
    def fsx_id(self) -> str:
        """The file system's id, or the variable of create.sh that has it."""
        return "${FSX_ID}" if self.makes_fsx else self.fsx

    @property
    def fsx_dns(self) -> str:
        return f"{self.fsx_id}.fsx.{self.region}.amazonaws.com"

    @property
    def fsx_mount_name(self) -> str:
        return "${FSX_MOUNT_NAME}" if self.makes_fsx else self.fsx_mountname

    @property
    def has_fsx(self) -> bool:
        return self.makes_fsx or bool(self.fsx)

    def queue_settings(self, group: Group) -> dict[str, str]:
        """Slurm's settings of a group's partition."""
        found = {"PriorityTier": "10", "PreemptMode": "OFF"} if group.is_fixed else {"PriorityTier": "0"}
        if group.name in self.teams and self.has_accounting:
            found["AllowAccounts"] = group.name
        return found

    def boost_settings(self) -> dict[str, str]:
        """Slurm's settings of the partition for boosters: below all others, and preempted by them."""
        return {"PriorityTier": "0", "PreemptMode": "REQUEUE", "GraceTime": str(GRACE_S)}

    def slurm_settings(self) -> dict[str, str]:
        """Slurm's settings of the cluster: the hooks, and preemption of boosters."""
        found = dict(line.split("=", 1) for line in hook_lines())
        if self.is_elastic:
            found |= {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}
            found["SchedulerParameters"] += ",preempt_youngest_first"
        if self.has_accounting:
            found |= {"AccountingStorageEnforce": "associations,limits,qos", "PriorityType": "priority/multifactor"}
            found |= {"PriorityWeightFairshare": "10000", "PriorityWeightAge": "1000"}
        return found

    def accounting_commands(self) -> list[str]:
        """The commands that make the teams' accounts, to be run once on the cluster."""
        if not (self.teams and self.has_accounting):
            return []
        return [f"sacctmgr -i add account {team} fairshare={count}" for team, count in self.teams.items()]

    def _problems(self) -> list[str]:
        found = []
        if not _NAME.fullmatch(self.name):
            found.append(f"--name: got {self.name!r}, expected 3 to 25 letters and digits, '-' only between them")
        for team in self.teams:
            if not _NAME.fullmatch(team) or team in _RESERVED:
                reserved = ", ".join(_RESERVED)
                found.append(f"--team: got {team!r}, expected a name of 3 to 25 letters and digits, not {reserved}")
        if self.teams and sum(self.teams.values()) != self.nodes:
            found.append(f"--nodes: got {self.nodes}, expected {sum(self.teams.values())}, the sum of the teams' nodes")
        for option, url in [("--scripts", self.scripts), *(("--data", url) for url in self.data)]:
            if not _BUCKET.fullmatch(url):
                found.append(f"{option}: got {url!r}, expected s3://bucket/prefix")
        if self.fsx and self.makes_fsx:
            found.append(
                "--fsx and --fsx-gib: got both, expected one: an existing file system, or the size of a new one"
            )
        if bool(self.fsx) != bool(self.fsx_mountname):
            found.append("--fsx: expected ID:MOUNTNAME, as `aws fsx describe-file-systems` prints them")
        if self.fsx_gib % 1200 and self.fsx_gib != 0:
            found.append(f"--fsx-gib: got {self.fsx_gib}, expected a multiple of 1200, as FSx sells them")
        if bool(self.database) != bool(self.database_secret):
            found.append("--database and --database-secret: got one, expected both or none")
        if self.training_plan and self.kind != "hyperpod":
            found.append(
                f"--training-plan: got it with --kind {self.kind}, expected --reservation: a plan is HyperPod's"
            )
        if self.reservation and self.kind == "hyperpod":
            found.append("--reservation: got it with --kind hyperpod, expected --training-plan")
        if self.database.partition(":")[2] and not self.database.partition(":")[2].isdecimal():
            found.append(f"--database: got {self.database!r}, expected HOST or HOST:PORT")
        if self.kind != "pcs" and self.has_accounting and not self.database:
            found.append("--accounting: got no --database, expected the database of slurmdbd; only PCS has its own")
        if self.capacity == "block" and not self.reservation:
            found.append("--capacity block: got no --reservation, expected the id of the capacity block")
        if self.kind != "parallelcluster" and not self.role:
            what = "the execution role's ARN" if self.kind == "hyperpod" else "the instance profile's ARN"
            found.append(f"--role: missing, expected {what}")
        if self.kind == "pcs" and not self.image:
            found.append("--image: missing, expected the id of a machine image with PCS's agent and Slurm")
        return found
