"""The node's disks, on real loop devices where this is root: an empty one becomes a file system, a used one never."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from provision_kit import Programs, bare, no_fetch, node_of

from lifecycle.provision.plan import choose
from lifecycle.provision.site import Site
from lifecycle.provision.step import ProvisionedNode
from lifecycle.provision.walk import Ending, StepOutcome, walk
from slurm.command import CommandError, run

Disk = Callable[[], str]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Makes empty disks of 64 MiB."""
    if os.geteuid() != 0:
        pytest.skip("loop devices need root")
    made: list[str] = []

    def make() -> str:
        image = tmp_path / f"disk{len(made)}"
        with image.open("wb") as file:
            file.truncate(64 << 20)
        try:
            made.append(run(("losetup", "--find", "--show", str(image))).stdout.strip())
        except CommandError as error:
            pytest.skip(f"no loop devices here: {error.reason}")
        return made[-1]

    yield make
    for device in made:
        run(("umount", "-q", device), check=False)
        run(("losetup", "--detach", device), check=False)


def _real(devices: list[str], mount: Path) -> ProvisionedNode:
    """This machine with its own programs and kernel; only its fstab and what is ours are elsewhere."""
    root = mount.parent / "root"
    for name in ("proc", "sys", "dev"):
        root.mkdir(exist_ok=True)
        (root / name).symlink_to(f"/{name}")
    (root / str(mount).lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
    mount.mkdir()
    (root / str(mount).lstrip("/")).symlink_to(mount)
    site = Site.from_mapping({"nvme": {"fs": "ext4", "devices": devices, "mount": str(mount)}, "container": False}, "t")
    return ProvisionedNode(root=root, site=site, run=run, fetch=no_fetch)


def _walk(node: ProvisionedNode) -> StepOutcome:
    return walk(choose(["nvme"]), node)[0]


def test_an_empty_disk_is_formatted_and_mounted_once_and_kept_over_a_reboot(disk: Disk, tmp_path: Path) -> None:
    if run(("blkid", "-L", "holdfast"), check=False).returncode == 0:
        pytest.skip("this machine has a file system labelled holdfast of its own")
    device, mount = disk(), tmp_path / "local"
    node = _real([device], mount)
    assert _walk(node).ending is Ending.DONE
    assert node.mounted(str(mount)) == device
    (mount / "kept").write_text("x")
    assert _walk(node).ending is Ending.NOTHING_TO_DO
    run(("umount", str(mount)))  # as after a reboot
    assert _walk(node).ending is Ending.DONE
    assert (mount / "kept").read_text() == "x"
    run(("umount", str(mount)))


def _with_ext4(device: str) -> None:
    run(("mkfs.ext4", "-q", device))


def _with_partitions(device: str) -> None:
    """A table with one Linux partition, as fdisk writes it; the kernel has not read it yet."""
    entry = bytes([0, 0, 0, 0, 0x83, 0, 0, 0]) + (2048).to_bytes(4, "little") + (20480).to_bytes(4, "little")
    with open(device, "r+b") as file:
        file.seek(446)
        file.write(entry + bytes(48) + b"\x55\xaa")


def _with_swap(device: str) -> None:
    run(("mkswap", device))


def _with_raid(device: str) -> None:
    """The superblock of an md 1.2 member of somebody else's array, at 4 KiB, as mdadm writes it."""
    head = bytearray(256)
    head[0:4] = 0xA92B4EFC.to_bytes(4, "little")
    head[4:8] = (1).to_bytes(4, "little")
    head[16:32] = bytes(range(16))
    head[32:44] = b"store:photos"
    head[128:136] = (2048).to_bytes(8, "little")
    head[144:152] = (8).to_bytes(8, "little")
    head[216:220] = _md_checksum(bytes(head))
    with open(device, "r+b") as file:
        file.seek(4096)
        file.write(head)


def _md_checksum(head: bytes) -> bytes:
    total = sum(int.from_bytes(head[at : at + 4], "little") for at in range(0, 256, 4))
    return ((total & 0xFFFFFFFF) + (total >> 32)).to_bytes(4, "little")


@pytest.mark.parametrize("use", [_with_ext4, _with_partitions, _with_swap, _with_raid])
def test_a_disk_with_anything_on_it_is_never_formatted(disk: Disk, tmp_path: Path, use: Callable[[str], None]) -> None:
    device = disk()
    use(device)
    before = run(("sha256sum", str(tmp_path / "disk0")), timeout_s=60).stdout
    outcome = _walk(_real([device], tmp_path / "local"))
    assert outcome.ending is Ending.FAILED
    assert device in outcome.reason and "not formatted" in outcome.reason
    assert run(("sha256sum", str(tmp_path / "disk0")), timeout_s=60).stdout == before


def test_a_disk_that_the_kernel_holds_is_never_formatted_though_it_looks_empty(disk: Disk, tmp_path: Path) -> None:
    device = disk()
    held = os.open(device, os.O_RDONLY | os.O_EXCL)
    try:
        outcome = _walk(_real([device], tmp_path / "local"))
    finally:
        os.close(held)
    assert outcome.ending is Ending.FAILED and "the kernel reports it as in use" in outcome.reason


def test_of_two_disks_with_one_in_use_neither_is_touched(disk: Disk, tmp_path: Path) -> None:
    empty, used = disk(), disk()
    _with_swap(used)
    outcome = _walk(_real([empty, used], tmp_path / "local"))
    assert outcome.ending is Ending.FAILED and used in outcome.reason
    assert run(("blkid", "-p", empty), check=False).returncode == 2


def test_a_missing_device_and_one_that_is_no_device_are_refused(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    for device, said in (("/dev/holdfast-none", "no such device"), ("/dev/null", "no block device")):
        root = bare(tmp_path / device.rsplit("/", 1)[1])
        (root / "dev").symlink_to("/dev")
        programs = Programs(root)
        programs.answers[("blkid",)] = (2, "")
        outcome = walk(choose(["nvme"]), node_of(root, programs, nvme={"devices": [device]}))[0]
        assert outcome.ending is Ending.FAILED and said in outcome.reason
        assert not [argv for argv in programs.ran if argv[0].startswith(("mkfs", "mdadm"))]


def test_a_disk_that_blkid_cannot_read_is_not_formatted(tmp_path: Path) -> None:
    programs = Programs(bare(tmp_path))
    programs.answers[("blkid", "-p")] = (4, "")
    programs.answers[("blkid", "-c")] = (2, "")
    outcome = walk(choose(["nvme"]), node_of(tmp_path, programs, nvme={"devices": ["/dev/sda"]}))[0]
    assert outcome.ending is Ending.FAILED and "blkid cannot read" in outcome.reason


def test_what_somebody_else_has_mounted_there_is_left_alone(tmp_path: Path) -> None:
    """HyperPod's images make the instance store one file system themselves."""
    programs = Programs(bare(tmp_path))
    with (tmp_path / "proc/mounts").open("a") as mounts:
        mounts.write("/dev/mapper/vg.01-lv_ephemeral /opt/dlami/nvme ext4 rw 0 0\n")
    node = node_of(tmp_path, programs, nvme={"mount": "/opt/dlami/nvme", "devices": ["/dev/nvme1n1"]})
    assert _walk(node).ending is Ending.NOTHING_TO_DO
    assert {argv[0] for argv in programs.ran} == {"blkid"}


def _array(tmp_path: Path, signature: str) -> list[tuple[str, ...]]:
    """What is run for two disks that blkid says this of; the kernel's own look is left out: there are no such disks."""
    programs = Programs(bare(tmp_path))
    programs.answers[("blkid", "-p", "-o", "export", "/dev/md/holdfast")] = (2, "")
    programs.answers[("blkid", "-p")] = (0, signature) if signature else (2, "")
    programs.answers[("blkid", "-c", "/dev/null", "-L")] = (2, "")
    node = node_of(tmp_path, programs, nvme={"devices": ["/dev/nvme1n1", "/dev/nvme2n1"], "mount": "/local"})
    (tmp_path / "dev/md").mkdir(parents=True)
    walk(choose(["nvme"]), node)
    return [argv for argv in programs.ran if argv[0].startswith(("md", "mk"))]


def test_an_array_of_ours_is_assembled_and_not_made_anew(tmp_path: Path) -> None:
    ran = _array(tmp_path, "TYPE=linux_raid_member\nLABEL=any:holdfast\n")
    assert ran == [("mdadm", "--assemble", "/dev/md/holdfast", "/dev/nvme1n1", "/dev/nvme2n1")]


def test_an_array_of_others_is_neither_assembled_nor_overwritten(tmp_path: Path) -> None:
    assert _array(tmp_path, "TYPE=linux_raid_member\nLABEL=store:photos\n") == []


def test_two_empty_disks_become_one_array(disk: Disk, tmp_path: Path) -> None:
    """With the real mdadm, where the kernel has md."""
    if not Path("/proc/mdstat").exists():
        pytest.skip("this kernel has no md")
    devices, mount = [disk(), disk()], tmp_path / "local"
    node = _real(devices, mount)
    try:
        assert _walk(node).ending is Ending.DONE
        assert os.path.realpath(node.mounted(str(mount))).startswith("/dev/md")
        assert _walk(node).ending is Ending.NOTHING_TO_DO
    finally:
        run(("umount", "-q", str(mount)), check=False)
        run(("mdadm", "--stop", "/dev/md/holdfast"), check=False)
