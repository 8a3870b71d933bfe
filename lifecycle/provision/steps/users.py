"""Makes the site's users with the same uid on all nodes. Slurm runs a job by the uid of its user."""

from __future__ import annotations

import shutil

from lifecycle.provision.site import User
from lifecycle.provision.step import ProvisionedNode, Step, StepError


class Users(Step):
    """Adds the site's users with their uid and gid. Existing users are never changed or removed."""

    name = "users"

    def goal(self, node: ProvisionedNode) -> str:
        return "users: " + " ".join(f"{user.name}({user.uid})" for user in node.site.users)

    def skip(self, node: ProvisionedNode) -> str:
        return "" if node.site.users else "no `users` in node.yaml"

    def is_done(self, node: ProvisionedNode) -> bool:
        return all(self._is_there(node, user) and node.path(_home(user)).is_dir() for user in node.site.users)

    def apply(self, node: ProvisionedNode) -> None:
        groups = {int(line.split(":")[2]) for line in node.text("/etc/group").splitlines() if line.count(":") == 3}
        for user in node.site.users:
            gid = user.uid if user.gid is None else user.gid
            if gid not in groups:
                node.run(("groupadd", "--gid", str(gid), user.name if user.gid is None else f"g{gid}"))
                groups.add(gid)
            if not self._is_there(node, user):
                numbers = ("--uid", str(user.uid), "--gid", str(gid))
                home = ("--home-dir", _home(user), "--no-create-home")
                node.run(("useradd", *numbers, *home, "--shell", "/bin/bash", user.name))
            if not node.path(_home(user)).is_dir():
                self._make_home(node, user, gid)

    def _make_home(self, node: ProvisionedNode, user: User, gid: int) -> None:
        """Makes a home directory under a temporary name and renames it.

        A killed useradd would leave the user without a home directory, or with one that root owns.
        """
        home = node.path(_home(user))
        home.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        part = home.with_name(f".{home.name}.holdfast")
        shutil.rmtree(part, ignore_errors=True)
        skeleton = node.path("/etc/skel")
        if skeleton.is_dir():
            shutil.copytree(skeleton, part, symlinks=True)
        else:
            part.mkdir()
        part.chmod(0o700)
        node.run(("chown", "-R", f"{user.uid}:{gid}", str(part)), timeout_s=120)
        part.rename(home)

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


def _home(user: User) -> str:
    return user.home or f"/home/{user.name}"
