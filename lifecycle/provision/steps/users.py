"""Makes the site's users and homes, with the same uid on all nodes. Slurm runs a job by the uid of its user."""

from __future__ import annotations

import os
import shutil

from lifecycle.provision.site import User
from lifecycle.provision.step import ProvisionedNode, Step, StepError


class Users(Step):
    """Adds the site's users with their uid and gid, without homes. Existing users are never changed or removed."""

    name = "users"

    def goal(self, node: ProvisionedNode) -> str:
        return "users: " + " ".join(f"{user.name}({user.uid})" for user in node.site.users)

    def skip(self, node: ProvisionedNode) -> str:
        return "" if node.site.users else "no `users` in node.yaml"

    def is_done(self, node: ProvisionedNode) -> bool:
        return all(self._is_there(node, user) for user in node.site.users)

    def apply(self, node: ProvisionedNode) -> None:
        groups = {int(line.split(":")[2]) for line in node.text("/etc/group").splitlines() if line.count(":") == 3}
        for user in node.site.users:
            gid = _gid(user)
            if gid not in groups:
                node.run(("groupadd", "--gid", str(gid), user.name if user.gid is None else f"g{gid}"))
                groups.add(gid)
            if not self._is_there(node, user):
                numbers = ("--uid", str(user.uid), "--gid", str(gid))
                home = ("--home-dir", _home(user), "--no-create-home")
                node.run(("useradd", *numbers, *home, "--shell", "/bin/bash", user.name))

    def _is_there(self, node: ProvisionedNode, user: User) -> bool:
        for line in node.text("/etc/passwd").splitlines():
            name, _, uid, *_ = line.split(":")
            if name == user.name and int(uid) == user.uid:
                return True
            if name == user.name or int(uid) == user.uid:
                raise StepError(
                    f"/etc/passwd: got {name} with uid {uid}, expected {user.name} with uid {user.uid}; "
                    "a uid must be the same on all nodes: change the account by hand, or change node.yaml"
                )
        return False


class Homes(Step):
    """Makes the users' home directories. They may be on the shared file system, which has to be mounted before."""

    name = "homes"

    def goal(self, node: ProvisionedNode) -> str:
        return "homes: " + " ".join(_home(user) for user in node.site.users)

    def skip(self, node: ProvisionedNode) -> str:
        return "" if node.site.users else "no `users` in node.yaml"

    def is_done(self, node: ProvisionedNode) -> bool:
        return all(node.path(_home(user)).is_dir() for user in node.site.users)

    def apply(self, node: ProvisionedNode) -> None:
        for user in node.site.users:
            if not node.path(_home(user)).is_dir():
                self._make(node, user)

    def _make(self, node: ProvisionedNode, user: User) -> None:
        """Makes a home directory under a temporary name and renames it: a killed run leaves no half of one.

        On a shared file system all nodes do so at once. Each has a temporary name of its own, and the first one's
        directory becomes the home.
        """
        home = node.path(_home(user))
        home.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        part = home.with_name(f".{home.name}.holdfast-{os.uname().nodename}")
        shutil.rmtree(part, ignore_errors=True)
        skeleton = node.path("/etc/skel")
        if skeleton.is_dir():
            shutil.copytree(skeleton, part, symlinks=True)
        else:
            part.mkdir()
        part.chmod(0o700)
        node.run(("chown", "-R", f"{user.uid}:{_gid(user)}", str(part)), timeout_s=120)
        try:
            part.rename(home)
        except OSError:
            if not home.is_dir():
                raise
            shutil.rmtree(part)


def _home(user: User) -> str:
    return user.home or f"/home/{user.name}"


def _gid(user: User) -> int:
    return user.uid if user.gid is None else user.gid
