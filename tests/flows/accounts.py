"""Slurm's accounts on a test cluster: a database and slurmdbd on the controller's machine, which end with it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from slurm.testbed.namespaces import RUN_DIR_VARIABLE, find_machine, wait_until
from slurm.testbed.plan import CONTROLLER, load_plan

PROGRAMS = ("slurmdbd", "sacctmgr", "mariadbd")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_READY_S = 60.0
_TABLES = Path("/usr/share/mysql")
_DATABASE = ("--no-defaults", "--user=root", "--skip-grant-tables", "--skip-name-resolve",
             "--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M",
             "--innodb-flush-log-at-trx-commit=0", "--aria-pagecache-buffer-size=8M")  # fmt: skip
_SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={socket}
DbdHost=ctl
DbdAddr={address}
SlurmUser=root
PidFile=/tmp/slurmdbd.pid
LogFile={log}
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StorageUser=root
StorageLoc=slurm
"""


def missing() -> list[str]:
    """What is not installed of what accounts need; on Debian slurmdbd and mariadb-server-core have it."""
    return [program for program in PROGRAMS if shutil.which(program, path=_SYSTEM_PATH) is None]


class Accounts:
    """The accounts of an idle cluster, for as long as it stands. The daemons die with the controller's machine.

    Args:
        cluster: whose slurm.conf is changed for good.
    """

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._conf = Path(cluster.env["SLURM_CONF"])
        plan = load_plan(self._conf.parent)
        assert plan is not None
        self._plan = plan
        self._data = cluster.log_dir.parent / "accounts"
        self._data.mkdir()

    def start(self, lines: Iterable[str]) -> None:
        """Starts the daemons.

        Args:
            lines: what `sacctmgr -i` is called with, one after the other.
        """
        self._start_database()
        self._start_slurmdbd()
        address = self._plan.address(CONTROLLER)  # the host, where sacctmgr is called too, knows no `ctl`
        storage = {"AccountingStorageType": "accounting_storage/slurmdbd", "AccountingStorageHost": address}
        self._write(storage | {"AccountingStoragePass": str(self._plan.munge_socket)})
        for line in (f"add cluster {self._cluster.name}", *lines):
            self._run(["sacctmgr", "-i", *line.split()])

    def configure(self, parameters: Mapping[str, str]) -> None:
        """Sets parameters of slurm.conf, in place of those of the same names there, and starts Slurm's daemons anew.

        They do not learn while they run that there are accounts now.
        """
        self._write(parameters)
        for machine in (CONTROLLER, *self._cluster.nodes):
            self._cluster.kill_daemon(machine)
            self._cluster.start_daemon(machine)
        self._cluster.restore()

    def _write(self, parameters: Mapping[str, str]) -> None:
        kept = re.sub(rf"^({'|'.join(parameters)})=.*\n", "", self._conf.read_text(), flags=re.MULTILINE)
        self._conf.write_text(kept + "".join(f"{name}={value}\n" for name, value in parameters.items()))

    def _start_database(self) -> None:
        log = self._cluster.log_dir / "mariadbd.log"
        data, socket = f"--datadir={self._data}", f"--socket={self._data}/socket"
        self._run(["mariadbd", *_DATABASE, data, "--bootstrap"], input=_new_databases())
        self._spawn(["mariadbd", *_DATABASE, data, socket, "--bind-address=127.0.0.1"], log)
        wait_until(lambda: self._listens(3306), _READY_S, f"the database does not answer; see {log}")

    def _start_slurmdbd(self) -> None:
        log = self._cluster.log_dir / "slurmdbd.log"
        path = self._conf.with_name("slurmdbd.conf")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(
                _SLURMDBD_CONF.format(socket=self._plan.munge_socket, address=self._plan.address(CONTROLLER), log=log)
            )
        self._spawn(["slurmdbd", "-D"], log)
        wait_until(lambda: self._listens(6819), _READY_S, f"slurmdbd does not answer; see {log}")

    def _listens(self, port: int) -> bool:
        said = self._run(["ss", "-Hltn", f"sport = :{port}"])
        return bool(said.strip())

    def _enter(self, argv: list[str]) -> list[str]:
        pid = find_machine(self._plan, CONTROLLER)
        assert pid is not None
        return ["nsenter", f"--target={pid}", "--net", "--mount", "--uts", "--ipc", "--pid", *argv]

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": _SYSTEM_PATH,
            "LANG": "C.UTF-8",
            "SLURM_CONF": str(self._conf),
            RUN_DIR_VARIABLE: str(self._conf.parent),
        }

    def _run(self, argv: list[str], input: str = "") -> str:
        done = subprocess.run(
            self._enter(argv),
            check=False,
            input=input,
            env=self._environment(),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=_READY_S,
        )
        assert done.returncode == 0, f"{argv}: {done.stdout} {done.stderr}"
        return done.stdout

    def _spawn(self, argv: list[str], log: Path) -> None:
        with log.open("ab") as file:
            subprocess.Popen(
                self._enter(argv),
                env=self._environment(),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )


def _new_databases() -> str:
    """The system's, as mariadb-install-db has it made (that program needs the client's package too), and slurmdbd's.

    With the client's library of MariaDB 11.8.9 slurmdbd cannot make its own: a connection that was refused because
    there is no such database fails in each later query (error 5027).
    """
    names = ("*_system_tables.sql", "*_system_tables_data.sql")  # mariadb_ or mysql_, by the release
    tables = (path.read_text() for name in names for path in _TABLES.glob(name))
    return "create database slurm;\ncreate database mysql;\nuse mysql;\n" + "\n".join(tables)
