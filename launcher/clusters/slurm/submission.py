"""The submitit executor for supervised jobs on Slurm. The batch script runs the supervisor; the job has --no-kill."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import shutil
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from submitit import SlurmJob

from ckpt.agent.process.launch import PYTHON
from holdfast.base.files import durable_write
from launcher.clusters.slurm.checks import check_partition, check_seen_by_nodes, remark_on_gpus
from launcher.clusters.slurm.queue import never_starts
from launcher.env.containers import of_the_batch
from launcher.errors import LauncherError, UsageError
from launcher.job import gpus
from launcher.job.booster_checks import check_boosters, require_booster
from launcher.job.jobfile import JobSpec
from launcher.job.sbatch_options import NOT_FROM_ENVIRONMENT, check_sbatch_option
from launcher.submission.job import SupervisedJob
from launcher.submission.request import make_folder, with_job_id, write_request
from launcher.submission.submitit_base import JobPaths, SlurmExecutorBase, WatcherBase
from slurm import Slurm, SlurmError
from slurm.batch_script import batch_script, overriding
from slurm.client import submitted_job
from slurm.command import CommandError

_NEXT_STEPS = {  # from a part of sbatch's error to the advice
    "Invalid generic resource": "gpus_per_node: no node has such GPUs; `sinfo -o '%P %G'` lists theirs",
    "Invalid partition": "`sinfo -s` lists them",
    "Job violates accounting/QOS policy": "limits: `sacctmgr show qos`, and `sacctmgr show assoc user=$USER`",
    "Invalid qos": "yours: `sacctmgr show assoc user=$USER format=Account,Partition,QOS`",
    "Invalid account": "yours: `sacctmgr show assoc user=$USER format=Account,Partition,QOS`",
    "unrecognized option": "words for the script go after --: holdfast submit JOB.yaml -- --steps 10",
    "invalid option --": "words for the script go after --: holdfast submit JOB.yaml -- --steps 10",
}
_NO_CLUSTER = (  # parts of sbatch's errors on a machine with Slurm's programs and without a cluster
    "establish a configuration source", "resolve_ctls_from_dns_srv", "fetch_config",
)  # fmt: skip
_PERHAPS_QUEUED = "the job may be in the queue: `squeue --me`"
_SBATCH_TIMEOUT_S = 120.0
_CANCEL_DEADLINE_S = 20.0
_RELEASE_DEADLINE_S = 30.0
_POLL_S = 0.5
_ENDED = frozenset(
    ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED",
     "REVOKED", "ENDED")  # ENDED is Holdfast's: Slurm has deleted its record of the job
)  # fmt: skip
# Short sbatch options (sbatch(1)) of those long options that the launcher reads or refuses.
_SHORT_OPTIONS = {
    "-G": "gpus",
    "-N": "nodes",
    "-n": "ntasks",
    "-J": "job-name",
    "-a": "array",
    "-o": "output",
    "-e": "error",
    "-p": "partition",
    "-q": "qos",
    "-A": "account",
    "-C": "constraint",
    "-c": "cpus-per-task",
    "-D": "chdir",
    "-x": "exclude",
    "-Q": "quiet",
    "-V": "version",
    "-W": "wait",
    "-M": "clusters",
}
# Parameters of submitit's SlurmExecutor that are no options of sbatch, or that a supervised job has otherwise.
_NO_OPTIONS = frozenset(
    ("additional_parameters", "array_parallelism", "setup", "signal_delay_s", "srun_args", "stderr_to_stdout",
     "teardown", "use_srun")
)  # fmt: skip
_ARRAY_PARALLELISM = 256  # submitit's default: jobs of an array that run at once
_FLAGS = ("exclusive",)  # that may stand without a value; one is given with "="

# The supervisor replaces the batch shell, because `--signal=B:` and `scancel --batch` signal only that process. The
# first trap keeps an early warning of the time limit from ending it; the supervisor also checks the time itself.
# A job that has started before is not ended by a batch host on which the environment is missing: it is requeued without
# that host. Slurm refuses the exclusion for a running job, so it comes after the requeue, whose SIGTERM is ignored.
_SCRIPT = """\
trap '' USR1 USR2
if [ "${{SLURM_RESTART_COUNT:-0}}" != 0 ] && ! {python} -c 'import launcher.submission.batch'; then
    trap '' TERM
    excluded=$(scontrol show job --oneliner "$SLURM_JOB_ID" | sed -n 's/.* ExcNodeList=\\([^ (][^ ]*\\).*/\\1,/p')
    scontrol requeue "$SLURM_JOB_ID" &&
        exec scontrol update "JobId=$SLURM_JOB_ID" "ExcNodeList=$excluded$SLURMD_NODENAME"
fi
exec {python} -u -m launcher.submission.batch slurm {folder}"""

_log = logging.getLogger(__name__)


class SlurmWatcher(WatcherBase):
    """Reads job states from squeue, and from sacct those of jobs that squeue no longer lists.

    submitit itself uses only sacct, which has no jobs on a site without slurmdbd, so that wait() would never return.
    """

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        return self.get_state(job_id, mode=mode) in _ENDED

    def states(self, job_ids: Sequence[str]) -> Mapping[str, tuple[str, str]]:
        slurm = Slurm()
        try:
            states = slurm.states(job_ids)
        except CommandError as error:
            _log.warning("job states are not up to date: %s", error)
            return {}
        if forgotten := [job_id for job_id in job_ids if job_id not in states]:
            states |= dict.fromkeys(forgotten, ("ENDED", ""))
            with contextlib.suppress(CommandError):
                states |= slurm.recorded_states(forgotten)
        return states


class SupervisedSlurmJob(SupervisedJob, SlurmJob):
    """A supervised job in Slurm."""

    watcher = SlurmWatcher(delay_s=60)

    def wait(self) -> None:
        """Wait for the job's end, and then shortly for Slurm to update its state, so that `state` is the final one."""
        super().wait()
        deadline_s = time.monotonic() + _RELEASE_DEADLINE_S
        while not self.watcher.is_done(self.job_id, mode="force") and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)

    def cancel(self, check: bool = True) -> None:
        """End the job at once. A running supervisor writes the outcome first.

        Raises:
            CommandError: `check` is true, and Slurm refuses.
        """
        try:
            cancel(self.job_id)
        except CommandError:
            if check:
                raise


class SupervisedSlurmExecutor(SlurmExecutorBase):
    """Writes the sbatch script of a supervised job and submits it.

    Args:
        folder: the job's folder, with %j for the job id; on a file system that all nodes share.
        flags: further arguments of sbatch, passed unchanged. They override the options in the script.
        kwargs: the arguments of submitit's SlurmExecutor.
    """

    job_class = SupervisedSlurmJob
    parameters: dict[str, Any]
    python: str

    def __init__(self, folder: Path | str, flags: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(folder, **{"python": shlex.join(PYTHON)} | kwargs)
        self._flags = tuple(flags)

    @classmethod
    def name(cls) -> str:
        return "slurm"  # the prefix of its parameters

    @classmethod
    def affinity(cls) -> int:
        return 2  # a script can be written anywhere; submission asks for sbatch

    def use(self, spec: JobSpec) -> None:
        """Set a job's options, in addition to those of update_parameters().

        Raises:
            UsageError: a supervised job cannot work with a flag or with one of `additional_parameters`; or the job
                names no partition or QOS for its boosters.
        """
        require_booster(spec)
        for option, value in flag_values(self._flags).items():
            check_sbatch_option(option, value, f"sbatch option --{option}", spec.nodes)
        for key, value in self.parameters.get("additional_parameters", {}).items():
            check_sbatch_option(key.replace("_", "-"), value, f"additional_parameters: {key}", spec.nodes)
        parameters = {name: value for name, value in self.parameters.items() if name != "additional_parameters"}
        parameters |= {
            "job_name": spec.name,
            "nodes": spec.most_nodes if spec.elastic is None else f"{spec.least_nodes}-{spec.most_nodes}",
            # With tasks per node, Slurm gives the fewest nodes of a range even if more are idle (seen on 22.05).
            "ntasks_per_node": 1 if spec.elastic is None else None,
            "use_srun": False,
            "wckey": self.parameters.get("wckey"),
        }
        if spec.time is not None or "time" not in parameters:
            parameters["time"] = spec.time  # None leaves the limit to the partition
        if "gres" in spec.slurm:
            parameters.pop("gres", None)
        if (asked := gpus.option(spec.gpus_per_node, spec.slurm.get("gres"))) is not None:
            parameters["gpus_per_node"] = asked
        self.parameters = parameters | {
            "additional_parameters": {
                "no-kill": True,
                "requeue": True,
                "signal": "B:USR2@90",
                **self.parameters.get("additional_parameters", {}),
                **of_the_batch(spec.slurm),
            }
        }

    def script(self, count: int = 1) -> str:
        """The batch script for the job last passed to use(), or for an array of `count` such jobs."""
        paths = JobPaths(folder=self.folder)
        options: dict[str, Any] = {
            **{name: value for name, value in self.parameters.items() if name not in _NO_OPTIONS and value is not None},
            "output": str(paths.stdout).replace("%t", "0"),
            "error": None if self.parameters.get("stderr_to_stdout") else str(paths.stderr).replace("%t", "0"),
            "open-mode": "append",
        }
        if count > 1:
            at_once = min(count, self.parameters.get("array_parallelism", _ARRAY_PARALLELISM))
            options |= {
                "array": f"0-{count - 1}%{at_once}",
                **{name: str(options[name]).replace("%j", "%A_%a") for name in ("output", "error") if options[name]},
            }
        options = {name.replace("_", "-"): value for name, value in options.items()}
        options |= {name.replace("_", "-"): v for name, v in self.parameters["additional_parameters"].items()}
        before, after = (self.parameters.get(name) or () for name in ("setup", "teardown"))
        return batch_script(dict(sorted(options.items())), [*before, self.program, *after])

    @property
    def program(self) -> str:
        """The lines of the batch script that become the supervisor."""
        return _SCRIPT.format(python=self.python, folder=shlex.quote(str(self.folder)))

    def request(self) -> str:
        """The job's options for Slurm. Jobs of one batch() with equal options become one array."""
        return self.script()

    def option(self, name: str) -> str | None:
        """The value of an sbatch option of the job last passed to use(); None for the site's default."""
        asked = flag_values(self._flags).get(name)
        given = asked or self.parameters["additional_parameters"].get(name) or self.parameters.get(name)
        return given or os.environ.get(f"SBATCH_{name.upper()}")

    def check(self, spec: JobSpec) -> None:
        """Check the job last passed to use() against the cluster.

        Raises:
            UsageError: its nodes would not see its folder, or the cluster cannot run it or its boosters.
        """
        partition = self.option("partition")
        check_seen_by_nodes(JobPaths.get_first_id_independent_folder(self.folder), spec)
        check_partition(partition, spec)
        check_boosters(spec, partition, self.option("qos"))
        remark_on_gpus(partition, spec)

    def waits_for_others(self) -> bool:
        """Whether that job is to start after others have ended, or at a later time."""
        return any(map(self.option, ("dependency", "begin")))

    def cluster_name(self) -> str:
        """The cluster's name; "" if Slurm does not answer."""
        try:
            return Slurm().cluster_name()
        except SlurmError:
            return ""

    def sbatch_command(self) -> list[str]:
        """The sbatch command line, without the script."""
        unset = [f"--unset={name}" for name in self._overriding(self.script())]
        return [*(["env", *unset] if unset else []), "sbatch", *self._flags]

    def _overriding(self, script: str) -> tuple[str, ...]:
        """The SBATCH_* variables that would override the script."""
        return overriding(os.environ, script, NOT_FROM_ENVIRONMENT)

    def _slurm(self, script: str) -> Slurm:
        """The cluster, for an sbatch of this script."""
        ignored = self._overriding(script)
        return Slurm(
            timeout_s=_SBATCH_TIMEOUT_S, env={name: os.environ[name] for name in os.environ if name not in ignored}
        )

    def test(self) -> str:
        """Slurm's answer to `sbatch --test-only` for the job last passed to use().

        Raises:
            LauncherError: Slurm refuses the job.
            UsageError: there is no sbatch.
        """
        _require_sbatch()
        with tempfile.NamedTemporaryFile("w", prefix="holdfast-", suffix=".sh") as script:
            text = self.script()
            script.write(text)
            script.flush()
            try:
                return self._slurm(text).test_only(self._flags, script.name)
            except CommandError as error:
                raise LauncherError(f"sbatch would refuse the job: {_refusal(error)}") from error

    def launch(self, specs: Sequence[JobSpec]) -> list[SlurmJob]:
        """Submit one job, or an array of jobs, with one sbatch."""
        _require_sbatch()
        folder = JobPaths.get_first_id_independent_folder(self.folder)
        make_folder(folder)
        self.throttle()
        draft, script = folder / f".{uuid.uuid4().hex}.sh", self.script(len(specs))
        if ignored := self._overriding(script):
            _log.warning("not passed to sbatch, the job's own options hold: %s", " ".join(ignored))
        try:
            durable_write(draft, script.encode())
            stdout = self._slurm(script).submit_file(self._flags, draft)
        except CommandError as error:
            raise LauncherError(_failure(error)) from error
        finally:
            draft.unlink(missing_ok=True)
        number = submitted_job(stdout)
        if number is None:
            raise LauncherError(f"sbatch: got {stdout!r:.200}, expected the job's id; {_PERHAPS_QUEUED}")
        jobs = self._settle(str(number), script.encode(), specs)
        _warn_of_limits(jobs[0].job_id)
        return jobs

    def _settle(self, submitted_id: str, script: bytes, specs: Sequence[JobSpec]) -> list[SlurmJob]:
        """Make the folders of the submitted jobs and write their requests, for which the jobs wait."""
        ids = [submitted_id] if len(specs) == 1 else [f"{submitted_id}_{index}" for index in range(len(specs))]
        jobs = [self.job_class(folder=self.folder, job_id=job_id) for job_id in ids]
        try:
            for job, spec in zip(jobs, specs, strict=True):
                job.paths.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                job.paths.folder.chmod(0o700)
                durable_write(job.paths.submission_file, script)
                write_request(job.paths.folder, spec.to_json(), self.name())
        except OSError as error:
            raise LauncherError(
                f"{jobs[0].paths.folder}: cannot be written ({error}); {_withdraw(submitted_id)}"
            ) from error
        return jobs


def sbatch_script(spec: JobSpec, folder: Path | str = "runs/%j", flags: Sequence[str] = ()) -> tuple[str, list[str]]:
    """Show a submission to Slurm without submitting anything.

    Returns:
        The sbatch script, and the command line that would submit it (the script's name left out).
    """
    executor = SupervisedSlurmExecutor(with_job_id(folder), flags)
    executor.use(spec)
    return executor.script(), executor.sbatch_command()


def sbatch_test(spec: JobSpec, folder: Path | str = "runs/%j", flags: Sequence[str] = ()) -> str:
    """Slurm's answer to `sbatch --test-only`: when and where the job would start.

    Raises:
        LauncherError: sbatch refuses the job.
        UsageError: there is no sbatch.
    """
    executor = SupervisedSlurmExecutor(with_job_id(folder), flags)
    executor.use(spec)
    return executor.test()


def _require_sbatch() -> None:
    if shutil.which("sbatch") is None:
        raise UsageError("cluster slurm: no sbatch on PATH; submit from a login node, or use --cluster local")


def _warn_of_limits(job_id: str) -> None:
    """Say that a submitted job waits for ever, which Slurm itself says only in the queue."""
    try:
        for line in never_starts(Slurm(), job_id):
            _log.warning("job %s waits for ever: %s; scancel it, and ask for less or for another QOS", job_id, line)
    except SlurmError as error:
        _log.info("job %s: limits of its QOS and accounts were not looked at: %s", job_id, error)


def cancel(job_id: str) -> None:
    """End a job. First asks a running supervisor, which can write the outcome; then calls scancel in any case.

    Raises:
        CommandError: Slurm refuses or does not answer.
    """
    slurm = Slurm()
    state = _state(slurm, job_id)
    if state == "RUNNING":
        with contextlib.suppress(CommandError):
            Slurm(timeout_s=_CANCEL_DEADLINE_S).signal_batch(job_id, "INT")
    deadline_s = time.monotonic() + _CANCEL_DEADLINE_S
    while state in ("RUNNING", "COMPLETING") and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
        state = _state(slurm, job_id)
    if state not in _ENDED:
        slurm.cancel(job_id)


def _state(slurm: Slurm, job_id: str) -> str:
    """The job's state; "" if Slurm does not know the job or does not answer."""
    try:
        return slurm.states([job_id]).get(job_id, ("", ""))[0]
    except CommandError:
        return ""


def _failure(error: CommandError) -> str:
    """What a failed sbatch means. After a time-out, its own or ours, slurmctld may have accepted the job."""
    if not error.reason.startswith("no answer") and "timed out" not in error.result.stderr:
        return f"sbatch refused the job: {_refusal(error)}; nothing was submitted"
    number = submitted_job(error.result.stdout)
    return f"sbatch: {_refusal(error)}; {_PERHAPS_QUEUED if number is None else _withdraw(str(number))}"


def _withdraw(job_id: str) -> str:
    """Cancel a job that cannot run; returns its fate in words."""
    try:
        Slurm().cancel(job_id)
    except CommandError:
        return f"job {job_id} may still be in the queue: `scancel {job_id}`"
    return f"job {job_id} was cancelled"


def _refusal(error: CommandError) -> str:
    lines = (line.removeprefix("sbatch: ").removeprefix("error: ") for line in error.result.stderr.splitlines())
    message = "; ".join(line.strip() for line in lines if line.strip()) or error.reason
    if any(words in message for words in _NO_CLUSTER):
        advice = (
            "`holdfast run` runs the job on this machine; on a login node, SLURM_CONF names the cluster's slurm.conf"
        )
        return f"no Slurm cluster answers here; {advice} ({message})"
    return message + "".join(f" ({step})" for words, step in _NEXT_STEPS.items() if words in message)


def flag_values(flags: Sequence[str]) -> dict[str, str]:
    """From long option name to value, for those flags that can be parsed without sbatch's table of options."""
    values = {}
    for flag, following in zip(flags, [*flags, ""][1:], strict=True):
        if flag.startswith("--"):
            option, given, value = flag[2:].partition("=")
            values[option] = value if given else "" if option in _FLAGS else following
        elif flag[:2] in _SHORT_OPTIONS:
            values[_SHORT_OPTIONS[flag[:2]]] = flag[2:].removeprefix("=") or following
    return values
