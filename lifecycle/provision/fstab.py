"""Holdfast's lines in /etc/fstab, one for each mount point. Lines without the option x-holdfast are never changed."""

from __future__ import annotations

from lifecycle.provision.step import ProvisionedNode, StepError

_FILE = "/etc/fstab"
_OURS = "x-holdfast"  # mount(8) ignores options that begin with x-


def line(source: str, mount_point: str, kind: str, options: str, passes: int = 0) -> str:
    """A line with Holdfast's mark. `passes` is fs_passno of fstab(5)."""
    return f"{source} {mount_point} {kind} {options},{_OURS} 0 {passes}"


def holds(node: ProvisionedNode, wanted: str) -> bool:
    """Whether /etc/fstab has exactly this line."""
    return wanted in node.text(_FILE).splitlines()


def put(node: ProvisionedNode, wanted: str) -> None:
    """Add a line, or replace Holdfast's own line for the same mount point.

    Raises:
        StepError: /etc/fstab has a line for this mount point that Holdfast did not write.
    """
    mount_point = wanted.split()[1]
    kept = []
    for old in node.text(_FILE).splitlines():
        fields = old.split()
        same = len(fields) >= 4 and not old.lstrip().startswith("#") and fields[1] == mount_point
        if same and _OURS not in fields[3].split(","):
            raise StepError(
                f"{_FILE}: got {old!r} for {mount_point}, expected no line that Holdfast did not write; remove it, "
                "or skip this step with --skip"
            )
        if not same:
            kept.append(old)
    node.write(_FILE, "\n".join([*kept, wanted]) + "\n")
