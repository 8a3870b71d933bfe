"""Mountpoint for Amazon S3: mounts buckets as directories, with a read cache on the node's local disk."""

from __future__ import annotations

from lifecycle.provision import apt, fstab
from lifecycle.provision.site import BucketSite
from lifecycle.provision.step import ProvisionedNode, Step

_PROGRAM = "/usr/bin/mount-s3"


class Mountpoint(Step):
    """Mounts the site's buckets now and at each boot. mount-s3 supports fstab since version 1.18."""

    name = "mountpoint"

    def goal(self, node: ProvisionedNode) -> str:
        return " ".join(f"{bucket.mount}: s3://{bucket.bucket}/{bucket.prefix}" for bucket in node.site.s3)

    def skip(self, node: ProvisionedNode) -> str:
        if not node.site.s3:
            return "no `s3` in node.yaml"
        return "not in a container: the host mounts file systems" if node.in_container else ""

    def is_done(self, node: ProvisionedNode) -> bool:
        return node.path(_PROGRAM).exists() and all(
            fstab.holds(node, self._line(node, bucket)) and node.mounted(bucket.mount) for bucket in node.site.s3
        )

    def fetches(self, node: ProvisionedNode) -> list[tuple[str, ...]]:
        return [] if node.path(_PROGRAM).exists() else [("mountpoint",)]

    def apply(self, node: ProvisionedNode) -> None:
        for file in self.fetches(node):
            apt.install_file(node, node.fetch(*file))
        for bucket in node.site.s3:
            node.path(self._cache(node, bucket)).mkdir(mode=0o700, parents=True, exist_ok=True)
            node.path(bucket.mount).mkdir(mode=0o755, parents=True, exist_ok=True)
            fstab.put(node, self._line(node, bucket))
            if not node.mounted(bucket.mount):
                node.run(("mount", bucket.mount), timeout_s=120)

    def _cache(self, node: ProvisionedNode, bucket: BucketSite) -> str:
        return bucket.cache or f"{node.site.nvme.mount}/.mount-s3/{bucket.bucket}"

    def _line(self, node: ProvisionedNode, bucket: BucketSite) -> str:
        options = [
            "_netdev", "nosuid", "nodev", "nofail", "rw", "allow-other",
            *(["read-only"] if bucket.read_only else []),
            *([f"prefix={bucket.prefix}"] if bucket.prefix else []),
            f"cache={self._cache(node, bucket)}", f"max-cache-size={bucket.cache_mib}",
        ]  # fmt: skip
        return fstab.line(f"s3://{bucket.bucket}/", bucket.mount, "mount-s3", ",".join(options))
