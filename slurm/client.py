"""Slurm's commands as methods, as far as the other packages need them."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from slurm import command
from slurm.command import CommandError, CommandRunner
from slurm.errors import SlurmError
from slurm.hostlist import compress
from slurm.limits import COLUMNS, OF_ONE_JOB
from slurm.qos import QOS_COLUMNS, Qos
from slurm.records import (
    DRAINED_FORMAT,
    QUEUE_FORMAT,
    DrainedNode,
    Job,
    NamedJob,
    Node,
    Partition,
    QueuedJob,
    T,
    read_all,
    state_below,
)
from slurm.topology import Topology

_CONNECT_TIMEOUT_S = 2.0
_JOBS = re.compile(r"^JobId=.*?\sNumNodes=.*?(?=^JobId=|\Z)", re.DOTALL | re.MULTILINE)  # a job's name may have lines

# What sbatch prints of a job that it has accepted, with and without --parsable. Wrappers of sites print the number
# alone, banners before it, or colours.
_COLOUR = r"(?:\x1b\[[0-9;]*m)*"
SUBMITTED = re.compile(
    rf"^\s*{_COLOUR}\s*(?:Submitted batch job )?([0-9]+)(?:;\S+| on cluster \S+)?\s*{_COLOUR}\s*$", re.MULTILINE
)

_OF_QOS = ("MaxTRESPU", "MaxTRESPA", "MinTRES")  # limits that associations do not have

JobId = int | str  # a task of a job array is "42_3": its own number may be the array's, which names all its tasks


class Slurm:
    """One cluster, reached through Slurm's own commands.

    Every method raises `CommandError`, with Slurm's message, when Slurm refuses or does not answer.
    """

    def __init__(
        self, *, run: CommandRunner = command.run, env: Mapping[str, str] | None = None, timeout_s: float = 30.0
    ) -> None:
        """
        Args:
            run: runs a command.
            env: the whole environment of commands; None passes on that of this process.
            timeout_s: time limit of each command, seconds.
        """
        self._run = partial(run, timeout_s=timeout_s)
        self._env = env

    def job(self, job_id: JobId) -> Job | None:
        """A job; None if Slurm does not know it. Slurm forgets a job MinJobAge after its end."""
        try:
            text = self._scontrol("show", "job", "--oneliner", str(job_id))
        except CommandError as error:
            if "Invalid job id" in error.result.stderr:
                return None
            raise
        records = _JOBS.findall(text)  # of all tasks where it is an array's number too
        own = (record for record in records if record.startswith(f"JobId={job_id} "))
        return Job.parse(next(own, text))

    def jobs_named(self, start: str) -> dict[str, NamedJob]:
        """The user's jobs whose names begin so, by number. Includes jobs that have ended, until Slurm forgets them.

        slurmctld sends all jobs of the user in any case; squeue itself selects by name.
        """
        fields = ("JobID", "State", "PreemptTime", "TimeLeft", "NodeList", "Reason", "Name")
        columns = "--Format=" + ",".join(f"{field}:|" for field in fields)  # with a separator nothing is cut off
        argv = ["squeue", "--noheader", "--states=all", f"--user={os.getuid()}", columns]
        lines = self._run(argv, env=self._env).stdout.splitlines()
        rows = (line.strip().removesuffix("|").split("|", 6) for line in lines)
        return {row[0]: NamedJob.parse(*row[1:]) for row in rows if len(row) == 7 and row[6].startswith(start)}

    def all_jobs(self) -> tuple[QueuedJob, ...]:
        """The jobs of all users. Includes jobs that have ended, until Slurm forgets them.

        A site may show users only their own jobs (PrivateData).
        """
        argv = ["squeue", "--noheader", "--all", "--array", "--states=all", f"--Format={QUEUE_FORMAT}"]
        rows = map(QueuedJob.parse, self._run(argv, env=self._env).stdout.split("\n"))
        return tuple(row for row in rows if row is not None)

    def states(self, job_ids: Iterable[JobId]) -> dict[str, tuple[str, str]]:
        """State (see `state_below`) and nodes (a hostlist) of these jobs, by id. Jobs unknown to Slurm are left out.

        Includes jobs that have ended, until Slurm forgets them.
        """
        ids = ",".join(map(str, job_ids))
        argv = ["squeue", "--noheader", "--states=all", "--array", "--format=%i|%T|%N", f"--jobs={ids}"]
        try:
            return _states(self._run(argv, env=self._env).stdout)
        except CommandError as error:
            if "Invalid job id" in error.result.stderr:  # it knows none of them
                return {}
            raise

    def recorded_states(self, job_ids: Iterable[JobId]) -> dict[str, tuple[str, str]]:
        """Like `states`, also for jobs that Slurm has forgotten; needs accounting (slurmdbd)."""
        columns = ["--noheader", "--parsable2", "--allocations", "--format=JobID,State,NodeList"]
        return _states(self._run(["sacct", *columns, "-j", ",".join(map(str, job_ids))], env=self._env).stdout)

    def used(self, since: str) -> str:
        """Rows of account|nodes|seconds|name of all users' jobs that ran since then; needs accounting (slurmdbd).

        Args:
            since: the earliest time, as sacct's --starttime takes it. What a job used before does not count.
        """
        columns = ["--noheader", "--parsable2", "--format=Account,AllocNodes,ElapsedRaw,JobName%256"]
        argv = ["sacct", "--allusers", "--allocations", "--truncate", f"--starttime={since}", *columns]
        return self._run(argv, env=self._env).stdout

    def cancel_named(self, name: str) -> None:
        """End all of the user's jobs of this name, if there are any."""
        self._run(["scancel", f"--user={os.getuid()}", f"--name={name}"], env=self._env)

    def nodes(self) -> tuple[Node, ...]:
        """All nodes of the cluster. Nodes whose record cannot be read are logged and left out."""
        return self._list("node", "NodeName", Node.parse)

    def node(self, name: str) -> Node:
        """A node by its name. `nodes` costs the controller more on a large cluster."""
        return Node.parse(self._scontrol("show", "node", "--oneliner", name))

    def drained(self, names: Iterable[str]) -> dict[str, DrainedNode]:
        """The nodes, of the given ones, that are drained or set to FAIL, by name.

        One request, which costs the controller the same for any number of nodes. sinfo has a line for each partition of
        a node.
        """
        argv = ["sinfo", "--noheader", "--all", "--Node", "--states=drain,fail", f"--nodes={compress(names)}"]
        lines = self._run([*argv, f"--format={DRAINED_FORMAT}"], env=self._env).stdout.splitlines()
        return {row.name: row for row in map(DrainedNode.parse, lines) if row is not None}

    def slurmd_port(self) -> int:
        """The port on which slurmd listens, on nodes without a port of their own."""
        port = self.config().get("SlurmdPort", "")
        if not port.isdecimal():
            raise SlurmError(
                "scontrol show config: no SlurmdPort in what it printed; expected a line 'SlurmdPort = 6818'"
            )
        return int(port)

    def config(self) -> dict[str, str]:
        """The controller's configuration: parameter -> value, as scontrol spells both."""
        text = self._scontrol("show", "config")
        return dict(re.findall(r"^(\w+)[ \t]*=[ \t]*(.*?)[ \t]*$", text, re.MULTILINE))

    def controller_up_s(self) -> float | None:
        """Seconds since slurmctld has started, by its own clock; None if SLURM_TIME_FORMAT hides the times."""
        text = self._scontrol("show", "config")
        try:
            now, started = (
                datetime.fromisoformat(re.findall(rf"^{line} (\S+)$", text, re.MULTILINE)[0])
                for line in ("Configuration data as of", r"BOOT_TIME *=")
            )
        except (IndexError, ValueError):
            return None
        return (now - started).total_seconds()

    def cluster_name(self) -> str:
        """The cluster's name, ClusterName in slurm.conf; "" if the controller does not print it."""
        return self.config().get("ClusterName", "")

    def partition(self, name: str) -> Partition:
        """A partition by its name."""
        return Partition.parse(self._scontrol("show", "partition", "--oneliner", name))

    def partitions(self) -> tuple[Partition, ...]:
        """All partitions of the cluster. Partitions whose record cannot be read are logged and left out."""
        return self._list("partition", "PartitionName", Partition.parse)

    def gres(self, partitions: str | None = None) -> tuple[str, ...]:
        """The generic resources of each kind of node, as sinfo prints them: "gpu:8(S:0-1)", or "(null)" for none.

        Args:
            partitions: names, separated by commas; None for the default partition's.
        """
        argv = ["sinfo", "--noheader", "--format=%P|%G", *([f"--partition={partitions}"] if partitions else [])]
        rows = [line.partition("|") for line in self._run(argv, env=self._env).stdout.splitlines()]
        return tuple(gres.strip() for name, _, gres in rows if partitions or name.endswith("*"))

    def qos(self) -> tuple[Qos, ...]:
        """All QOS; needs accounting (slurmdbd)."""
        argv = ["sacctmgr", "--noheader", "--parsable2", "show", "qos", QOS_COLUMNS]
        answer = self._run(argv, env=self._env).stdout
        return tuple(Qos.parse(line) for line in answer.splitlines() if line)

    def limits_of(self, job: Job) -> dict[str, dict[str, str]]:
        """The limits of a job's QOS and of its partitions' QOS, by the QOS's name. Needs accounting (slurmdbd)."""
        names = {job.qos} | {each.qos for each in self.partitions() if each.name in job.partition.split(",")}
        columns = (*COLUMNS, *OF_ONE_JOB)
        rows = self._accounting("qos", ("Name", *columns))
        return {row[0]: _limits(columns, row[1:]) for row in rows if row[0] and row[0] in names}

    def account_limits_of(self, job: Job) -> dict[str, dict[str, str]]:
        """The limits of a job's user and account and of the accounts above. Needs accounting (slurmdbd).

        A site may show users no limits but their own (PrivateData).
        """
        columns = tuple(column for column in (*COLUMNS, *OF_ONE_JOB) if column not in _OF_QOS)
        found: dict[str, dict[str, str]] = {}
        account, cluster = job.account, self.cluster_name()
        while account and f"account {account}" not in found:
            where = (f"account={account}", f"cluster={cluster}")
            rows = self._accounting("assoc", ("User", "Partition", "ParentName", *columns), *where)
            own = [row for row in rows if row[0] == job.user and row[1] in ("", job.partition)]
            if account == job.account and own:
                found[f"user {job.user} in account {account}"] = _limits(columns, max(own, key=lambda row: row[1])[3:])
            above = [row for row in rows if not row[0]]
            for row in above:  # an account's other limits are those of its users, who may have their own
                found[f"account {account}"] = {"GrpTRES": row[3]} if row[3] else {}
            account = above[0][2] if above else ""
        return found

    def _accounting(self, what: str, columns: Sequence[str], *where: str) -> list[list[str]]:
        """The rows of `sacctmgr show`."""
        argv = ["sacctmgr", "--noheader", "--parsable2", "show", what, *where, f"format={','.join(columns)}"]
        rows = (line.split("|") for line in self._run(argv, env=self._env).stdout.splitlines())
        return [row for row in rows if len(row) == len(columns)]

    def topology(self) -> Topology:
        """The cluster's switches; none if the site has no topology configured."""
        try:
            return Topology.parse(self._scontrol("show", "topology"))
        except CommandError as error:
            if "No topology information" in error.result.stderr + error.result.stdout:
                return Topology()
            raise

    def mpi_types(self) -> tuple[str, ...]:
        """The values that srun's --mpi accepts."""
        answer = self._run(["srun", "--mpi=list"], env=self._env)
        return tuple(re.findall(r"^\s+(\w+)\s*$", answer.stdout + answer.stderr, re.MULTILINE))

    def cancel(self, job_id: JobId) -> None:
        """End a job. It is not requeued."""
        self._run(["scancel", str(job_id)], env=self._env)

    def cancel_pending(self, job_id: JobId) -> None:
        """End a job if it is still in the queue. A job that has started is not touched."""
        self._run(["scancel", "--state=PENDING", str(job_id)], env=self._env)

    def signal_batch(self, job_id: JobId, name: str) -> None:
        """Send a signal, for example INT, to a running job's batch script.

        For a job that does not run, scancel retries for minutes.
        """
        self._run(["scancel", "--batch", f"--signal={name}", str(job_id)], env=self._env)

    def requeue(self, job_id: JobId) -> None:
        """Requeue a job under the same number."""
        self._scontrol("requeue", str(job_id))

    def exclude(self, job_id: JobId, nodes: Iterable[str]) -> None:
        """Set the nodes that a pending job must not get. They replace those excluded before and stay set in requeues.

        Slurm refuses this for a running job ("Job is no longer pending execution"). It accepts it right after a
        requeue, while the old nodes are still completing (seen on 22.05).
        """
        self._scontrol("update", f"JobId={job_id}", f"ExcNodeList={compress(nodes)}")

    def shrink(self, job_id: JobId, nodes: Iterable[str]) -> None:
        """Leave only these nodes to a running job. Its tasks on the others are killed, and its steps go on.

        Slurm refuses it for the node of the batch script. Inside the job, scontrol would write slurm_job_N_resize.sh
        into the working directory, for scripts that use the variables of the old size.
        """
        outside = {
            name: value
            for name, value in (os.environ if self._env is None else self._env).items()
            if name not in ("SLURM_JOB_ID", "SLURM_JOBID")
        }
        self._run(["scontrol", "update", f"JobId={job_id}", f"NodeList={compress(nodes)}"], env=outside)

    def drain(self, node: str, reason: str) -> None:
        """Drain a node. Needs an operator's rights.

        Args:
            node: its name.
            reason: the reason that `sinfo -R` shows.
        """
        if not reason.strip():
            raise SlurmError(f"drain of {node}: no reason given; Slurm asks for one, admins read it in sinfo -R")
        self._scontrol("update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")

    def fail(self, node: str, reason: str) -> None:
        """Set a node's state to FAIL with a reason. HyperPod acts on this state, for example on "Action:Replace"."""
        self._scontrol("update", f"NodeName={node}", "State=FAIL", f"Reason={reason}")

    def resume(self, node: str) -> None:
        """Return a node to service, whatever took it out."""
        self._scontrol("update", f"NodeName={node}", "State=RESUME")

    def reboot(self, node: str, reason: str) -> None:
        """Reboot a node through RebootProgram once its jobs have ended; Slurm resumes it when it registers again."""
        self._scontrol("reboot", "ASAP", "nextstate=RESUME", f"reason={reason}", node)

    def reserve(self, name: str, nodes: Iterable[str]) -> None:
        """Reserve nodes, in any state, for root's jobs until `release`. A second call replaces the nodes."""
        listed = f"Nodes={compress(nodes)}"
        wanted = (f"ReservationName={name}", listed, "Users=root", "StartTime=now", "Duration=UNLIMITED")
        try:
            self._scontrol("create", "reservation", *wanted, "Flags=MAINT,IGNORE_JOBS,OVERLAP")
        except CommandError:
            if name not in self.reservations():
                raise
            self._scontrol("update", f"ReservationName={name}", listed)

    def release(self, name: str) -> None:
        """Remove a reservation, if there is one."""
        try:
            self._scontrol("delete", f"ReservationName={name}")
        except CommandError:
            if name in self.reservations():
                raise

    def cancel_in(self, reservation: str) -> None:
        """End all jobs in a reservation, if there are any."""
        self._run(["scancel", f"--reservation={reservation}"], env=self._env)

    def reservations(self) -> tuple[str, ...]:
        """Names of all reservations."""
        answer = self._scontrol("show", "reservation", "--oneliner")
        return tuple(re.findall(r"^ReservationName=(\S+)", answer, re.MULTILINE))

    def submit(self, options: Sequence[str], script: str, env: Mapping[str, str] | None = None) -> int:
        """Submit a batch script; returns the job's number.

        Args:
            options: of sbatch.
            script: the text.
            env: the whole environment of sbatch and so of the job; None: that of the other commands.
        """
        answer = self._run(["sbatch", "--parsable", *options], env=env or self._env, input=script).stdout
        number = submitted_job(answer)
        if number is None:
            raise SlurmError(f"sbatch --parsable: got {answer.strip()!r:.200}, expected the job's number")
        return number

    def submit_file(self, options: Sequence[str], script: Path | str) -> str:
        """Submit a script file with a user's own sbatch options; returns sbatch's stdout, see `submitted_job`."""
        return self._run(["sbatch", *options, str(script)], env=self._env).stdout

    def test_only(self, options: Sequence[str], script: Path | str) -> str:
        """Slurm's answer to `sbatch --test-only` for a script file, on one line. Submits nothing."""
        answer = self._run(["sbatch", "--test-only", *options, str(script)], env=self._env)
        return " ".join(line.removeprefix("sbatch: ") for line in (answer.stdout + answer.stderr).splitlines())

    def _list(self, kind: str, first: str, parse: Callable[[str], T]) -> tuple[T, ...]:
        found, errors = read_all(self._scontrol("show", kind, "--oneliner"), first, parse)
        if errors:
            import logging  # imported here: hooks run for every job and seldom need it

            for error in errors:
                logging.getLogger(__name__).warning("a %s is left out: %s", kind, error)
        return found

    def _scontrol(self, *arguments: str) -> str:
        return self._run(["scontrol", *arguments], env=self._env).stdout


def _limits(columns: Sequence[str], values: Sequence[str]) -> dict[str, str]:
    return {column: value for column, value in zip(columns, values, strict=True) if value}


def _states(text: str) -> dict[str, tuple[str, str]]:
    """Rows of job|state|nodes."""
    rows = (line.strip().split("|", 2) for line in text.splitlines())
    return {  # sacct writes "CANCELLED by 1000"
        row[0]: (state_below(row[1].split(" ")[0]), row[2]) for row in rows if len(row) == 3
    }


def submitted_job(stdout: str) -> int | None:
    """The number of the job that sbatch has accepted: of the last line with one. None if there is no such line."""
    numbers = SUBMITTED.findall(stdout)
    return int(numbers[-1]) if numbers else None


def listens(address: str, port: int) -> bool:
    """Whether a process accepts connections there. A slurmd that does may serve, whatever the controller reports."""
    return connection_error(address, port) is None


def connection_error(address: str, port: int) -> OSError | None:
    """Why no connection can be made; None if one can. ConnectionRefusedError: the host is reached, nothing listens."""
    try:
        socket.create_connection((address, port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return error
    return None
