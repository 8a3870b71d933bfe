"""The request file, by which a submission passes the job's options to the batch host. Only the user can change it."""

from __future__ import annotations

import grp
import json
import os
import pwd
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.base.files import durable_write
from holdfast.base.plain_file import read_json
from launcher.errors import LauncherError, UsageError
from slurm.trust import Trust, TrustError

NAME = "submission.json"
_WAIT_S = 60.0  # the job may start before the submitting process has written the file
_POLL_S = 0.5
_ADVICE = "other users could put another job there; `chmod go-w` it, or choose a folder below directories of your own"


def with_job_id(folder: Path | str) -> Path:
    """The folder of each job's files, with %j for the job's id.

    Raises:
        UsageError: it is a URL.
    """
    if "://" in str(folder):
        raise UsageError(f"folder: got {folder}, expected a directory; a bucket for checkpoints is checkpoint.s3.url")
    folder = Path(folder).expanduser()
    return folder if "%j" in str(folder) else folder / "%j"


def make_folder(folder: Path) -> None:
    """Make the folder of all job folders, and its parents. Their modes do not depend on the umask.

    Raises:
        UsageError: other users can change the folder or a directory above it.
        OSError: the folder cannot be made.
    """
    for level in reversed((folder, *folder.parents)):
        if not level.exists():
            level.mkdir(mode=0o755, exist_ok=True)
    try:
        check_private(folder)
    except LauncherError as error:
        raise UsageError(str(error)) from None


def check_private(folder: Path) -> None:
    """Check that only the job's user and root can change a folder.

    Raises:
        LauncherError: other users can.
    """
    trust = Trust(owners=_owners(), directory_owners=_owners(), groups=_own_groups(), advice=_ADVICE)
    try:
        trust.check_way(os.path.abspath(folder))
    except TrustError as error:
        raise LauncherError(str(error)) from None
    except OSError as error:
        raise LauncherError(f"{error.filename}: {error.strerror}, expected the job's folder") from None


def write_request(folder: Path, job: Mapping[str, Any], cluster: str) -> None:
    """Write the job's options and the name of its scheduler to a file in its folder that only the user can read."""
    durable_write(folder / NAME, json.dumps({**job, "cluster": cluster}, indent=1).encode())


def read_request(folder: Path) -> dict[str, Any]:
    """Read the job's options.

    Raises:
        LauncherError: there is no request, or it belongs to another user.
    """
    path = folder / NAME
    try:
        if (owner := path.lstat().st_uid) != os.getuid():
            raise LauncherError(f"{path}: of uid {owner}, expected a file of uid {os.getuid()}")
        job = read_json(path)
    except (OSError, ValueError) as error:
        raise LauncherError(f"{path}: cannot be read ({error}); submit the job again") from None
    job.pop("cluster", None)
    return job


def wait_for_request(folder: Path) -> dict[str, Any]:
    """Wait until the submitting process has written the job's options, and read them.

    Raises:
        LauncherError: other users could have written them, or there are none within `_WAIT_S`.
    """
    deadline_s = time.monotonic() + _WAIT_S
    while not (folder / NAME).exists() and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    check_private(folder)
    return read_request(folder)


def _owners() -> set[int]:
    owners = {0, os.getuid()}
    if Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
        owners.add(65534)  # in a user namespace that does not map root, root's files have this owner
    return owners


def _own_groups() -> set[int]:
    """The user's private group, if the site gives each user one. Write permission for it shares nothing (umask 002)."""
    try:
        user = pwd.getpwuid(os.getuid())
        group = grp.getgrgid(user.pw_gid)
    except KeyError:
        return set()
    is_own = group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
    return {group.gr_gid} if is_own else set()
