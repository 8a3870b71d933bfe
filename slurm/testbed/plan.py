"""The description of one cluster, plan.json. Every name, address and path of the cluster is derived from it.

`up` writes the file before it makes anything else. So `down` finds and removes the remains of an `up` that was killed.
"""

from __future__ import annotations

import json
import os
import pwd
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from slurm.errors import SlurmError

RUN_ROOT = Path("/run/holdfast-cluster")  # plan.json, configuration, sockets
DATA_ROOT = Path("/var/lib/holdfast-cluster")  # the user's home, nodes' disks, logs: files that may grow
CONTROLLER = "ctl"
MAX_NODES = 64
MAX_CLUSTERS = 200
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")


class TestbedError(SlurmError):
    """The testbed cannot carry out a request. The message says why and what to do."""

    __test__ = False  # pytest collects classes whose name begins with Test


class NoSuchCluster(TestbedError):
    """The cluster's name or size is not valid, or no cluster has that name. The command line exits with code 2."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """The description of one cluster.

    Attributes:
        name: the cluster's name, also its ClusterName in Slurm.
        index: number of the cluster on this host. Its bridge is hf<index>, its subnet 10.213.<index>.0/24.
        size: number of nodes; they are called n1, n2, ...
        user: the user without privileges as whom jobs run.
        hooks: whether Slurm calls Holdfast's hooks.
        switches: number of leaf switches in topology.conf, which the nodes are dealt to in turn. 0: no topology.
        gpus: number of GPUs that gres.conf gives each node. Their devices are dummies.
    """

    name: str
    index: int
    size: int
    user: str
    hooks: bool = False
    switches: int = 0
    gpus: int = 0

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(f"n{number}" for number in range(1, self.size + 1))

    @property
    def machines(self) -> tuple[str, ...]:
        """The controller and the nodes. Each is a separate machine."""
        return (CONTROLLER, *self.nodes)

    def address(self, machine: str) -> str:
        """A machine's address on the cluster's network."""
        last = 250 if machine == CONTROLLER else int(machine[1:])
        return f"10.213.{self.index}.{last}"

    def mac(self, machine: str) -> str:
        """A machine's hardware address. It is the same after a crash, so the other machines' ARP entries stay valid."""
        return "02:68:66:" + ":".join(f"{int(part):02x}" for part in self.address(machine).split(".")[1:])

    @property
    def host_address(self) -> str:
        """The host's address on the cluster's network."""
        return f"10.213.{self.index}.254"

    @property
    def bridge(self) -> str:
        return f"hf{self.index}"

    def link(self, machine: str) -> str:
        """Name of the host's end of a machine's network link (a veth pair)."""
        return f"hf{self.index}-{machine}"

    @property
    def run_dir(self) -> Path:
        return RUN_ROOT / self.name

    @property
    def data_dir(self) -> Path:
        return DATA_ROOT / self.name

    @property
    def slurm_conf(self) -> Path:
        return self.run_dir / "slurm.conf"

    @property
    def gpu_dir(self) -> Path:
        """Directory of the dummy GPU devices, the same for every node."""
        return self.run_dir / "gpu"

    @property
    def hosts_file(self) -> Path:
        return self.run_dir / "hosts"

    @property
    def munge_key(self) -> Path:
        return self.run_dir / "munge.key"

    @property
    def munge_dir(self) -> Path:
        """Directory of munge's socket. On the host it has the controller's socket; each node mounts its own over it."""
        return self.run_dir / "munge"

    @property
    def munge_socket(self) -> Path:
        return self.munge_dir / "munge.socket"

    @property
    def home(self) -> Path:
        return self.data_dir / "home"

    @property
    def nvme(self) -> Path:
        """Mount point of a node's local disk, the same path on every node."""
        return self.data_dir / "nvme"

    @property
    def log_dir(self) -> Path:
        return self.data_dir / "log"

    def machine_dir(self, machine: str) -> Path:
        """Directory of a machine's disk, which survives a crash."""
        return self.data_dir / "machines" / machine

    @property
    def hooks_dir(self) -> Path:
        """Directory of the hook scripts that slurm.conf names."""
        return self.run_dir / "hooks"

    def hooks_root(self, machine: str) -> Path:
        """Directory that the hooks of a machine use as "/", because all machines share the host's file system."""
        return self.machine_dir(machine) / "root"

    def log(self, machine: str) -> Path:
        return self.log_dir / f"{machine}.log"

    @property
    def account(self) -> pwd.struct_passwd:
        return account(self.user)

    def save(self, directory: Path) -> None:
        """Write plan.json into a directory and flush it to disk."""
        with open(directory / "plan.json", "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)
            file.flush()
            os.fsync(file.fileno())


def load_plan(directory: Path) -> ClusterPlan | None:
    """Read plan.json of a cluster's run directory.

    Returns:
        The description; None if there is no plan.json.

    Raises:
        TestbedError: plan.json cannot be read or does not describe a cluster.
    """
    path = directory / "plan.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        known = {field.name for field in fields(ClusterPlan)}  # another version of Holdfast may have written others
        return ClusterPlan(**{key: value for key, value in found.items() if key in known})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise TestbedError(f"{path} does not describe a cluster ({error}); remove {directory} by hand") from error


def check_name(name: str) -> str:
    """Return the name of a cluster.

    Raises:
        NoSuchCluster: the name is not valid.
    """
    if not _NAME.fullmatch(name):
        raise NoSuchCluster(f"cluster name: got {name!r}, expected a-z, 0-9 and '-', 31 at most, first a letter")
    return name


def check_size(nodes: int) -> int:
    """Return the number of nodes of a cluster.

    Raises:
        NoSuchCluster: the number is not from 1 to `MAX_NODES`.
    """
    if not 1 <= nodes <= MAX_NODES:
        raise NoSuchCluster(f"number of nodes: got {nodes}, expected 1 to {MAX_NODES}")
    return nodes


def account(user: str) -> pwd.struct_passwd:
    """Return the account of a user of this host.

    Raises:
        TestbedError: the user has no account, or is root.
    """
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        raise TestbedError(f"user of the cluster: {user!r} has no account here; name one that has") from None
    if found.pw_uid == 0:
        raise TestbedError("user of the cluster: got root, expected an ordinary user; name one")
    return found


def daemon_name(machine: str) -> str:
    """The pattern by which `pgrep -x` finds a machine's Slurm daemon.

    At a reconfiguration newer releases of Slurm execute their own binary again. On Debian its name is slurmd-wlm.
    """
    return f"{'slurmctld' if machine == CONTROLLER else 'slurmd'}(-wlm)?"
