"""What a cluster consists of: one small file from which every other name, address and path follows.

The file is written before anything else is made, so that whatever a dead `up` left behind can be found and removed.
"""

from __future__ import annotations

import json
import os
import pwd
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from slurm.errors import SlurmError

RUN_ROOT = Path("/run/holdfast-cluster")  # descriptions, configuration, sockets
DATA_ROOT = Path("/var/lib/holdfast-cluster")  # the user's home, nodes' disks, logs: may grow
CONTROLLER = "ctl"
MAX_NODES = 64
MAX_CLUSTERS = 200
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")


class TestbedError(SlurmError):
    """The testbed cannot do what was asked; the message says why and what to do."""

    __test__ = False  # not a test class, whatever its name


class NoSuchCluster(TestbedError):
    """A cluster's name or size that cannot be, or a cluster that is not there. The command line exits 2."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """The description of one cluster.

    Attributes:
        name: the cluster's name, also its ClusterName in Slurm.
        index: number of the cluster on this machine; gives its bridge and its subnet 10.213.<index>.0/24.
        size: number of nodes; they are called n1, n2, ...
        user: the ordinary user for whom jobs run.
        hooks: whether Slurm calls this project's hooks.
        switches: leaf switches that Slurm is told of, with equally many nodes each; 0 for no topology.
        gpus: GPUs of each node in Slurm's books; their devices do nothing.
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
        """The controller and the nodes, each a machine of its own."""
        return (CONTROLLER, *self.nodes)

    def address(self, machine: str) -> str:
        """A machine's address on the cluster's network."""
        last = 250 if machine == CONTROLLER else int(machine[1:])
        return f"10.213.{self.index}.{last}"

    def mac(self, machine: str) -> str:
        """A machine's hardware address. A new one after a crash would go unnoticed by others for half a minute."""
        return "02:68:66:" + ":".join(f"{int(part):02x}" for part in self.address(machine).split(".")[1:])

    @property
    def host_address(self) -> str:
        """The address at which the cluster sees the host."""
        return f"10.213.{self.index}.254"

    @property
    def bridge(self) -> str:
        return f"hf{self.index}"

    def link(self, machine: str) -> str:
        """The host's end of a machine's network cable."""
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
        """The devices that are every node's GPUs."""
        return self.run_dir / "gpu"

    @property
    def hosts_file(self) -> Path:
        return self.run_dir / "hosts"

    @property
    def munge_key(self) -> Path:
        return self.run_dir / "munge.key"

    @property
    def munge_dir(self) -> Path:
        """Where munge's socket is. The host sees the controller's; every node has its own bound over it."""
        return self.run_dir / "munge"

    @property
    def munge_socket(self) -> Path:
        return self.munge_dir / "munge.socket"

    @property
    def home(self) -> Path:
        return self.data_dir / "home"

    @property
    def nvme(self) -> Path:
        """Where every node sees its own local disk."""
        return self.data_dir / "nvme"

    @property
    def log_dir(self) -> Path:
        return self.data_dir / "log"

    def machine_dir(self, machine: str) -> Path:
        """What survives a machine's crash: its disk."""
        return self.data_dir / "machines" / machine

    @property
    def hooks_dir(self) -> Path:
        """The scripts that slurm.conf names."""
        return self.run_dir / "hooks"

    def hooks_root(self, machine: str) -> Path:
        """Stands for "/" in the hooks' files: the machines share one disk."""
        return self.machine_dir(machine) / "root"

    def log(self, machine: str) -> Path:
        return self.log_dir / f"{machine}.log"

    @property
    def account(self) -> pwd.struct_passwd:
        return account(self.user)

    def save(self, directory: Path) -> None:
        """Write the description into a directory; on disk when this returns."""
        with open(directory / "plan.json", "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)
            file.flush()
            os.fsync(file.fileno())


def load_plan(directory: Path) -> ClusterPlan | None:
    """The description in a cluster's run directory, None if there is none.

    Raises:
        TestbedError: it is there but cannot be read.
    """
    path = directory / "plan.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        known = {field.name for field in fields(ClusterPlan)}  # another version of this project may have written it
        return ClusterPlan(**{key: value for key, value in found.items() if key in known})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise TestbedError(f"{path} does not describe a cluster ({error}); remove {directory} by hand") from error


def check_name(name: str) -> str:
    """A cluster's name, if it can be one."""
    if not _NAME.fullmatch(name):
        raise NoSuchCluster(f"cluster name: got {name!r}, expected a-z, 0-9 and '-', 31 at most, first a letter")
    return name


def check_size(nodes: int) -> int:
    """A number of nodes, if a cluster can have it."""
    if not 1 <= nodes <= MAX_NODES:
        raise NoSuchCluster(f"number of nodes: got {nodes}, expected 1 to {MAX_NODES}")
    return nodes


def account(user: str) -> pwd.struct_passwd:
    """The account of an ordinary user of this machine."""
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        raise TestbedError(f"user of the cluster: {user!r} has no account here; name one that has") from None
    if found.pw_uid == 0:
        raise TestbedError("user of the cluster: got root, expected an ordinary user; name one")
    return found


def daemon_name(machine: str) -> str:
    """What `pgrep -x` finds a machine's Slurm daemon by.

    At a reconfiguration newer releases execute themselves again, by the file's own name: on Debian slurmd-wlm.
    """
    return f"{'slurmctld' if machine == CONTROLLER else 'slurmd'}(-wlm)?"
