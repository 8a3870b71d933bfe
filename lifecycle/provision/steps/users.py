"""Users, the same on all nodes: Slurm runs a job under its user's number."""

from __future__ import annotations

from lifecycle.provision.site import User
from lifecycle.provision.step import Node, Step, StepError


class Users(Step):
    """The site's users, with the numbers they have everywhere. None is changed or removed."""

    name = "users"

    def goal(self, node: Node) -> str:
        return "users: " + " ".join(f"{user.name}({user.uid})" for user in node.site.users)

    def skip(self, node: Node) -> str:
        return "" if node.site.users else "no `users` in node.yaml"

    def is_done(self, node: Node) -> bool:
        return all(self._is_there(node, user) for user in node.site.users)

    def apply(self, node: Node) -> None:
        groups = {int(line.split(":")[2]) for line in node.text("/etc/group").splitlines() if line.count(":") == 3}
        for user in node.site.users:
            if self._is_there(node, user):
                continue
            gid = user.uid if user.gid is None else user.gid
            if gid not in groups:
                node.run(("groupadd", "--gid", str(gid), user.name if user.gid is None else f"g{gid}"))
                groups.add(gid)
            home = user.home or f"/home/{user.name}"
            numbers = ("--uid", str(user.uid), "--gid", str(gid))
            node.run(("useradd", *numbers, "--home-dir", home, "--create-home", "--shell", "/bin/bash", user.name))

    def _is_there(self, node: Node, user: User) -> bool:
        for line in node.text("/etc/passwd").splitlines():
            name, _, uid, *_ = line.split(":")
            if name == user.name and int(uid) == user.uid:
                return True
            if name == user.name or int(uid) == user.uid:
                raise StepError(
                    f"/etc/passwd: got {name} with uid {uid}, expected {user.name} with uid {user.uid}; "
                    "the numbers must be the same on all nodes: change it by hand, or node.yaml"
                )
        return False
