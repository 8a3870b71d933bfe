"""The submitit executor for supervised jobs on this machine. The supervisor outlives the submitting process."""

from __future__ import annotations

import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from submitit import LocalExecutor

from ckpt.agent.process.launch import PYTHON
from launcher.clusters.local.cluster import require_machine
from launcher.errors import LauncherError
from launcher.job.jobfile import JobSpec
from launcher.job.supervisor_process import Process
from launcher.submission.job import SupervisedJob
from launcher.submission.request import make_folder, write_request
from launcher.submission.submitit_base import JobPaths, LocalJobBase


class SupervisedLocalJob(SupervisedJob, LocalJobBase):
    """A job on the local cluster. Its state and cancel() work from any process on the machine."""

    def get_info(self, mode: str = "force") -> dict[str, str]:
        process = Process.read(self.paths.folder)
        if not self.is_own_process and process is not None and process.alive():
            return {"jobState": "RUNNING"}
        if not self.is_own_process and self._outcome() is not None:
            return {"jobState": "FINISHED"}
        return dict(super().get_info(mode))

    def done(self, force_check: bool = False) -> bool:
        """Whether the job's supervisor has ended."""
        return bool(LocalJobBase.done(self))

    def cancel(self, check: bool = True) -> None:
        """Have the supervisor end the job at once, as Ctrl-C does.

        Raises:
            LauncherError: `check` is true, and the job does not run on this machine.
        """
        process = Process.read(self.paths.folder)
        if (process is None or not process.interrupt()) and check:
            raise LauncherError(f"job {self.job_id}: not running on this host, so there is nothing to cancel")


class SupervisedLocalExecutor(LocalExecutor):
    """Starts the supervisor as a process on this machine.

    It does not use submitit's own controller, which supports only one node, sets a time limit, and uses PIDs as job
    ids, although PIDs are reused.
    """

    job_class = SupervisedLocalJob

    def __init__(self, folder: Path | str, **kwargs: Any) -> None:
        super().__init__(folder, **{"python": shlex.join(PYTHON)} | kwargs)

    @classmethod
    def name(cls) -> str:
        return "local"  # the prefix of its parameters

    def use(self, spec: JobSpec) -> None:
        """Check a job. The local cluster needs no options; the supervisor reads the JobSpec.

        Raises:
            UsageError: the job cannot run on this machine.
        """
        require_machine(spec)

    def check(self, spec: JobSpec) -> None:
        """Does nothing: `use` has checked the machine."""

    def waits_for_others(self) -> bool:
        return False

    def request(self) -> str:
        """The options for a scheduler: "", because there is none."""
        return ""

    def cluster_name(self) -> str:
        return ""

    def launch(self, specs: Sequence[JobSpec]) -> list[LocalJobBase]:
        """Starts each."""
        return [self._start(spec) for spec in specs]

    def _start(self, spec: JobSpec) -> LocalJobBase:
        paths = self._new_job_paths()
        try:
            write_request(paths.folder, spec.to_json(), self.name())
            process = self._spawn(paths)
            Process.of_pid(process.pid).save(paths.folder)
        except OSError as error:
            shutil.rmtree(paths.folder, ignore_errors=True)
            raise LauncherError(f"{paths.folder}: the job could not be started: {error}") from error
        return self.job_class(folder=self.folder, job_id=paths.job_id, process=process)

    def _new_job_paths(self) -> JobPaths:
        """Choose a job id that is unique on this machine, by making the job's folder."""
        while True:
            paths = JobPaths(self.folder, job_id=f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}", task_id=0)
            make_folder(paths.folder.parent)
            try:
                paths.folder.mkdir(mode=0o700)
            except FileExistsError:
                continue
            return paths

    def _spawn(self, paths: JobPaths) -> subprocess.Popen[bytes]:
        with paths.stdout.open("ab") as stdout, paths.stderr.open("ab") as stderr:
            return subprocess.Popen(
                [*shlex.split(self.python), "-u", "-m", "launcher.submission.batch", "local", str(paths.folder)],
                stdin=subprocess.DEVNULL,
                stdout=stderr if self.parameters.get("stderr_to_stdout") else stdout,
                stderr=stderr,
                start_new_session=True,
            )
