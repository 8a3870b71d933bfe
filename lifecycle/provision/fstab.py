"""/etc/fstab, one line for each mount point; lines that somebody else wrote are left alone."""

from __future__ import annotations

from lifecycle.provision.step import ProvisionedNode, StepError

_FILE = "/etc/fstab"
_OURS = "x-holdfast"  # an option that mount(8) ignores, as all that begin with x-


def line(source: str, mount_point: str, kind: str, options: str, passes: int = 0) -> str:
    """A line of ours."""
    return f"{source} {mount_point} {kind} {options},{_OURS} 0 {passes}"


def holds(node: ProvisionedNode, wanted: str) -> bool:
    """Whether the file has this line."""
    return wanted in node.text(_FILE).splitlines()


def put(node: ProvisionedNode, wanted: str) -> None:
    """Put a line of ours in, in place of the one we wrote before for the same mount point.

    Raises:
        StepError: the mount point has a line of somebody else's.
    """
    mount_point = wanted.split()[1]
    kept = []
    for old in node.text(_FILE).splitlines():
        fields = old.split()
        same = len(fields) >= 4 and not old.lstrip().startswith("#") and fields[1] == mount_point
        if same and _OURS not in fields[3].split(","):
            raise StepError(f"{_FILE}: got {old!r} for {mount_point}, expected no line of others; remove it or --skip")
        if not same:
            kept.append(old)
    node.write(_FILE, "\n".join([*kept, wanted]) + "\n")
