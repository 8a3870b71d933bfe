"""`python -m ckpt.epilog DIRECTORY --within SECONDS`: started by Slurm's epilog as the job's user on each node."""

from __future__ import annotations

import argparse
import logging
import os
import pwd
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from ckpt.epilog.flush import DEADLINES, EpilogFlush
from ckpt.epilog.request import NAME, Request, read_request
from ckpt.errors import CheckpointError
from ckpt.format.file_lock import locked
from ckpt.tiers.open import lower_tiers
from ckpt.tiers.tier import Tier

_LOCK = "on_job_end.lock"

log = logging.getLogger("ckpt.epilog")


def main() -> int:
    """Returns 0 if all requests are done or there was nothing to do."""
    parser = argparse.ArgumentParser(prog="python -m ckpt.epilog")
    parser.add_argument("directory", type=Path, help="The job's memory directory on this node.")
    parser.add_argument("--within", type=float, required=True, help="Seconds after which this process exits.")
    arguments = parser.parse_args()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(arguments.within + DEADLINES.last_words_s) + 1)  # in case anything hangs
    os.umask(0o077)
    deadline_s = time.monotonic() + arguments.within
    work = [partial(_flush, directory, deadline_s) for directory in _asking(arguments.directory)]
    ended = _at_once(work, deadline_s + DEADLINES.last_words_s / 2)
    os._exit(0 if all(ended) else 1)  # a thread may hang on dead storage


def _at_once(work: Sequence[Callable[[], None]], until_s: float) -> list[bool]:
    """Runs functions in parallel, in daemon threads. Returns for each whether it has ended by a time."""
    threads = [threading.Thread(target=each, daemon=True) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))
    return [not thread.is_alive() for thread in threads]


def _asking(directory: Path) -> list[Path]:
    """The directories with a request: `directory` and its subdirectories (of MPI programs).

    Links and others' are ignored.
    """
    found = []
    for path in (directory, *sorted(directory.iterdir())):
        facts = os.lstat(path)
        if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and (path / NAME).is_file():
            found.append(path)
    return found


def _flush(directory: Path, deadline_s: float) -> None:
    """Flushes to all requested tiers in parallel, so that one that hangs does not delay the others."""
    try:
        locked(directory / _LOCK)  # until this process ends
        request = read_request(directory)
    except BlockingIOError:
        return  # another process does it
    except (CheckpointError, OSError) as error:
        print(f"ckpt.epilog: {error}", file=sys.stderr, flush=True)
        return
    with suppress(KeyError):
        os.environ["HOME"] = pwd.getpwuid(os.getuid()).pw_dir
    os.environ.update(request.environment)
    _start_no_program()
    _log_to_file(request.config.namespace, os.environ)
    tiers = lower_tiers(request.config, node=None)
    names = request.config.on_job_end
    ended = _at_once([partial(_to_tier, directory, request, tiers[name], deadline_s) for name in names], deadline_s)
    for name in (name for name, has_ended in zip(names, ended, strict=True) if not has_ended):
        log.warning("node %s: the %s tier did not answer in time", request.node, name)


def _log_to_file(namespace: str, env: Mapping[str, str]) -> None:
    """Logs to a file of the namespace in the user's state folder, because nobody reads this process's output."""
    state = Path(env.get("XDG_STATE_HOME") or Path(env.get("HOME", "/")) / ".local" / "state")
    folder = Path(env.get("HOLDFAST_LOG_DIR") or state / "holdfast" / "log")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        stream = os.fdopen(os.open(folder / f"{namespace}_job_end.log", flags, 0o600), "w")
    except OSError as error:
        print(f"ckpt.epilog: no log file in {folder}: {error.strerror}", file=sys.stderr, flush=True)
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=stream)


def _start_no_program() -> None:
    """Disables AWS's `credential_process`, because the user's programs must not start after the job's end."""
    with suppress(ImportError):
        from botocore import credentials

        credentials.ProcessProvider.load = lambda self: None


def _to_tier(directory: Path, request: Request, tier: Tier, deadline_s: float) -> None:
    try:
        EpilogFlush(directory, request, tier).run(deadline_s)
    except (CheckpointError, OSError) as error:
        log.warning("node %s: job's end: %s", request.node, error)


if __name__ == "__main__":
    sys.exit(main())
