"""Single steps: what they run, and what they say when the node does not become as it should."""

from __future__ import annotations

import io
import os
import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from provision_kit import LUSTRE_ADDRESS, Killed, Programs, bare, node_of

from holdfast.settings.errors import SettingsError
from lifecycle.provision.hook_settings import read_hook_settings
from lifecycle.provision.plan import choose
from lifecycle.provision.step import ProvisionedNode
from lifecycle.provision.walk import Ending, StepOutcome, walk
from lifecycle.versions import pin, table
from slurm.command import run
from slurm.hooks.places import Places
from slurm.hooks.settings import HookSettings, read_settings

_EFA = pin().efa


def _archive(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text.encode()), 0o755
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path


class _Installing(Programs):
    """tar is the real one; Amazon's installer leaves what it leaves."""

    def __init__(self, root: Path, version: str = _EFA) -> None:
        super().__init__(root)
        self.root, self.version = root, version

    def _answer(self, words: tuple[str, ...], cwd: str | Path | None) -> tuple[int, str]:
        if words[0] == "tar":
            run(words)
        if words[0] == "bash":
            for name in ("efa/bin/fi_info", "ofi-nccl/lib/libnccl-net-ofi.so"):
                path = self.root / "opt/amazon" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            text = f"# EFA installer version: {self.version}\n"
            (self.root / "opt/amazon/efa_installed_packages").write_text(text)
        return super()._answer(words, cwd)


def _efa_node(tmp_path: Path, programs: Programs, script: str = "efa_installer.sh", **site: Any) -> ProvisionedNode:
    node = node_of(tmp_path, programs, **{"instance": "p5.48xlarge", **site})
    archive = _archive(tmp_path / "efa.tar.gz", {f"aws-efa-installer/{script}": "#!/bin/bash\n"})
    return ProvisionedNode(root=node.root, site=node.site, run=programs, fetch=lambda *_, **__: archive)


def _one(name: str, node: ProvisionedNode) -> StepOutcome:
    return walk(choose([name]), node)[0]


@pytest.mark.parametrize("container", [False, True])
def test_the_kernel_module_is_left_to_the_host_in_a_container_and_only_there(tmp_path: Path, container: bool) -> None:
    programs = _Installing(bare(tmp_path))
    node = _efa_node(tmp_path, programs, container=container)
    assert _one("efa", node).ending is Ending.DONE
    (installer,) = [argv for argv in programs.ran if argv[0] == "bash"]
    assert ("--skip-kmod" in installer) is container and "-y" in installer and "--skip-limit-conf" in installer
    assert any(argv[0].endswith("fi_info") for argv in programs.ran) is not container
    assert _one("efa", node).ending is Ending.NOTHING_TO_DO
    assert _one("ofi-nccl", node).ending is Ending.DONE
    assert (tmp_path / "etc/ld.so.conf.d/90-holdfast-ofi-nccl.conf").read_text() == "/opt/amazon/ofi-nccl/lib\n"


def test_an_installer_that_left_another_version_is_a_failure(tmp_path: Path) -> None:
    outcome = _one("efa", _efa_node(bare(tmp_path), _Installing(tmp_path, "1.1.0")))
    assert outcome.ending is Ending.FAILED and f"got version 1.1.0, expected {_EFA}" in outcome.reason


@pytest.mark.parametrize(
    ("site", "there", "ending"),
    [
        ({}, "1.999.0", Ending.NOTHING_TO_DO),  # an image's own, newer than what is pinned here
        ({}, "1.2.0", Ending.DONE),
        ({}, "unknown", Ending.DONE),
        ({"efa": _EFA}, "1.999.0", Ending.DONE),  # the site says which
    ],
)
def test_efa_software_newer_than_the_pinned_is_replaced_only_where_the_site_says_so(
    tmp_path: Path, site: dict[str, str], there: str, ending: Ending
) -> None:
    node = _efa_node(tmp_path, _Installing(bare(tmp_path)), **site)
    for name, text in (("efa/bin/fi_info", ""), ("efa_installed_packages", f"# EFA installer version: {there}\n")):
        (tmp_path / "opt/amazon" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "opt/amazon" / name).write_text(text)
    assert _one("efa", node).ending is ending


def test_devices_that_do_not_answer_after_the_installation_ask_for_a_reboot(tmp_path: Path) -> None:
    programs = _Installing(bare(tmp_path))
    programs.answers[("/opt/amazon/efa/bin/fi_info",)] = (61, "")
    outcome = _one("efa", _efa_node(tmp_path, programs))
    assert outcome.ending is Ending.FAILED and "reboot, then run again" in outcome.reason


def test_an_archive_that_is_not_amazons_is_refused(tmp_path: Path) -> None:
    outcome = _one("efa", _efa_node(bare(tmp_path), _Installing(tmp_path), script="setup.sh"))
    assert outcome.ending is Ending.FAILED and "expected Amazon's installer" in outcome.reason


def test_an_installer_without_the_plugin_is_a_failure_and_not_a_fall_back_to_sockets(tmp_path: Path) -> None:
    outcome = _one("ofi-nccl", node_of(bare(tmp_path), instance="p5.48xlarge"))
    assert outcome.ending is Ending.FAILED and "run the step `efa` again" in outcome.reason


def test_a_machine_without_efa_or_gpu_skips_what_needs_them(tmp_path: Path) -> None:
    outcomes = walk(choose(["efa", "ofi-nccl", "nccl", "nccl-tests", "gdrcopy"]), node_of(bare(tmp_path)))
    assert {outcome.ending for outcome in outcomes} == {Ending.SKIPPED}
    assert all(outcome.reason for outcome in outcomes)


def test_nccl_is_the_one_of_the_sites_torch(tmp_path: Path) -> None:
    programs = Programs(bare(tmp_path))
    assert _one("nccl", node_of(tmp_path, programs, instance="p5.48xlarge", torch="2.9.1")).ending is Ending.DONE
    assert programs.packages == {"libnccl2": "2.27.5-1+cuda12.8", "libnccl-dev": "2.27.5-1+cuda12.8"}
    newer = node_of(tmp_path, programs, instance="p5.48xlarge", torch="2.11.0")
    assert _one("nccl", newer).ending is Ending.DONE, "another torch, another NCCL"
    assert programs.packages["libnccl2"] == "2.28.9-1+cuda13.0"


_MAKEFILE = "all:\n\tmkdir -p build\n\techo '#!/bin/sh' > build/all_reduce_perf\n"


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_nccl_tests_are_built_whole_or_not_at_all(tmp_path: Path) -> None:
    """With the real tar and make; killed in the middle of make, nothing half-made is in their place."""
    (bare(tmp_path) / "usr/local/cuda").mkdir(parents=True)
    archive = _archive(tmp_path / "nccl-tests.tar.gz", {"nccl-tests-2/Makefile": _MAKEFILE})
    described = node_of(tmp_path, instance="p5.48xlarge")

    def dies(argv: Any, **options: Any) -> Any:
        result = run(argv, **options)
        if argv[0] == "make":
            raise Killed
        return result

    def node(runner: Any) -> ProvisionedNode:
        return ProvisionedNode(root=tmp_path, site=described.site, run=runner, fetch=lambda *_, **__: archive)

    with pytest.raises(Killed):
        _one("nccl-tests", node(dies))
    assert not (tmp_path / "opt/nccl-tests").exists()
    assert _one("nccl-tests", node(run)).ending is Ending.DONE
    assert (tmp_path / "opt/nccl-tests/build/all_reduce_perf").exists()
    version = table()["artifacts"]["nccl-tests"]["version"]
    assert (tmp_path / "opt/nccl-tests/VERSION").read_text() == f"{version}\n"
    assert _one("nccl-tests", node(run)).ending is Ending.NOTHING_TO_DO
    (tmp_path / "opt/nccl-tests/VERSION").write_text("1.0\n")
    assert _one("nccl-tests", node(run)).ending is Ending.DONE, "an older one is replaced"


def test_lustre_without_a_client_for_the_kernel_names_the_kernel(tmp_path: Path) -> None:
    import platform

    programs = Programs(bare(tmp_path))
    programs.answers[("modprobe",)] = (1, "")
    programs.answers[("apt-get", "-y", "-q", "-o", "DPkg::Lock::Timeout=300")] = (100, "E: Unable to locate package")
    outcome = _one("lustre", node_of(tmp_path, programs, fsx={"dns": "fs", "mountname": "m"}))
    assert outcome.ending is Ending.FAILED
    assert platform.release() in outcome.reason and "E: Unable to locate package" in outcome.reason
    assert "lustre" not in (tmp_path / "etc/fstab").read_text()


class _Striping(Programs):
    """A Lustre file system whose root directory has a stripe count."""

    count = "1"

    def _answer(self, words: tuple[str, ...], cwd: str | Path | None) -> tuple[int, str]:
        if words[:2] == ("lfs", "getstripe"):
            return 0, f"{self.count}\n"
        if words[:2] == ("lfs", "setstripe"):
            self.count = words[words.index("-c") + 1]
        return super()._answer(words, cwd)


@pytest.mark.parametrize(("count", "asked"), [(-1, ["-1"]), (1, []), (None, [])])
def test_new_files_of_lustre_are_striped_as_the_site_says(tmp_path: Path, count: int | None, asked: list[str]) -> None:
    programs = _Striping(bare(tmp_path))
    fsx = {"dns": "fs", "mountname": "m"} | ({} if count is None else {"stripe_count": count})
    node = node_of(tmp_path, programs, fsx=fsx)
    assert [_one("lustre", node).ending for _ in range(2)] == [Ending.DONE, Ending.NOTHING_TO_DO]
    set_ = [argv for argv in programs.ran if argv[:2] == ("lfs", "setstripe")]
    assert [argv[argv.index("-c") + 1] for argv in set_] == asked and all(argv[-1] == "/fsx" for argv in set_)


def _lustre_rows(root: Path) -> list[str]:
    return [line for line in (root / "proc/mounts").read_text().splitlines() if line.split()[2] == "lustre"]


def test_lustre_is_recognised_by_the_address_that_the_kernel_shows(tmp_path: Path) -> None:
    node = node_of(bare(tmp_path), fsx={"dns": "fs-1.example", "mountname": "c2rqdamv"})
    assert [_one("lustre", node).ending for _ in range(2)] == [Ending.DONE, Ending.NOTHING_TO_DO]
    assert _lustre_rows(tmp_path) == [f"{LUSTRE_ADDRESS}@tcp:/c2rqdamv /fsx lustre rw 0 0"]


def test_lustre_that_systemd_mounts_at_its_first_use_is_mounted_once(tmp_path: Path) -> None:
    """As after a reboot: the line in fstab, and only autofs at the mount point."""
    node = node_of(bare(tmp_path), fsx={"dns": "fs-1.example", "mountname": "c2rqdamv"})
    before = (tmp_path / "proc/mounts").read_text()
    assert _one("lustre", node).ending is Ending.DONE
    (tmp_path / "proc/mounts").write_text(before + "systemd-1 /fsx autofs rw,relatime,fd=46 0 0\n")
    assert [_one("lustre", node).ending for _ in range(2)] == [Ending.DONE, Ending.NOTHING_TO_DO]
    assert len(_lustre_rows(tmp_path)) == 1


@pytest.mark.parametrize("source", ["10.9.9.9@tcp:/m", f"{LUSTRE_ADDRESS}@tcp:/other"])
def test_another_lustre_at_its_place_is_left_alone(tmp_path: Path, source: str) -> None:
    with (bare(tmp_path) / "proc/mounts").open("a") as mounts:
        mounts.write(f"{source} /fsx lustre rw 0 0\n")
    outcome = _one("lustre", node_of(tmp_path, fsx={"dns": "fs", "mountname": "m"}))
    assert outcome.ending is Ending.FAILED and f"got {source} mounted there" in outcome.reason


def test_another_file_system_at_lustres_place_is_left_alone(tmp_path: Path) -> None:
    with (bare(tmp_path) / "proc/mounts").open("a") as mounts:
        mounts.write("server:/x /fsx nfs rw 0 0\n")
    outcome = _one("lustre", node_of(tmp_path, fsx={"dns": "fs", "mountname": "m"}))
    assert outcome.ending is Ending.FAILED and "got server:/x mounted there" in outcome.reason


def test_buckets_are_read_through_a_cache_on_the_nodes_own_disk(tmp_path: Path) -> None:
    (bare(tmp_path) / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/mount-s3").touch()
    node = node_of(tmp_path, s3=[{"bucket": "data", "mount": "/s3/data", "prefix": "train/"}])
    assert _one("mountpoint", node).ending is Ending.DONE
    line = (tmp_path / "etc/fstab").read_text().splitlines()[-1]
    assert line.startswith("s3://data/ /s3/data mount-s3 ") and "prefix=train/" in line and "read-only" in line
    assert "cache=/local/.mount-s3/data,max-cache-size=102400" in line
    assert (tmp_path / "local/.mount-s3/data").stat().st_mode & 0o077 == 0


def test_a_munge_key_that_cannot_be_read_is_said_before_slurmd_is_touched(tmp_path: Path) -> None:
    outcome = _one("slurmd", node_of(bare(tmp_path), slurm={"munge_key": "/srv/none"}))
    assert outcome.ending is Ending.FAILED and "munge's key cannot be read" in outcome.reason


def test_slurmd_that_does_not_come_up_is_a_failure_with_the_way_to_its_log(tmp_path: Path) -> None:
    programs = Programs(bare(tmp_path))
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    programs.answers[("systemctl", "is-active", "slurmd")] = (3, "failed\n")
    outcome = _one("slurmd", node_of(tmp_path, programs))
    assert outcome.ending is Ending.FAILED and "journalctl -u slurmd" in outcome.reason


def test_slurmd_is_left_to_what_starts_it_afterwards(tmp_path: Path) -> None:
    """ParallelCluster: before its own last step slurmd has no name to register with."""
    programs = Programs(bare(tmp_path))
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    programs.answers[("systemctl", "is-active", "slurmd")] = (3, "inactive\n")
    assert _one("slurmd", node_of(tmp_path, programs, slurm={"start": False})).ending is Ending.DONE
    assert ("systemctl", "daemon-reload") in programs.ran
    assert not any("slurmd" in argv for argv in programs.ran)


def test_a_user_without_a_home_gets_one(tmp_path: Path) -> None:
    (bare(tmp_path) / "etc/skel").mkdir()
    (tmp_path / "etc/skel/.profile").write_text("umask 077\n")
    with (tmp_path / "etc/passwd").open("a") as passwd:
        passwd.write("ann:x:2001:2001::/home/ann:/bin/bash\n")
    programs = Programs(tmp_path)
    node = node_of(tmp_path, programs, users=[{"name": "ann", "uid": 2001}])
    assert _one("users", node).ending is Ending.NOTHING_TO_DO
    assert _one("homes", node).ending is Ending.DONE
    assert (tmp_path / "home/ann/.profile").exists()
    assert [argv[0] for argv in programs.ran] == ["chown"]
    assert _one("homes", node).ending is Ending.NOTHING_TO_DO


class _Meanwhile(Programs):
    """Something happens while a home is given to its user."""

    def __init__(self, root: Path, happens: Callable[[], None]) -> None:
        super().__init__(root)
        self._happens = happens

    def _answer(self, words: tuple[str, ...], cwd: str | Path | None) -> tuple[int, str]:
        if words[0] == "chown":
            self._happens()
        return super()._answer(words, cwd)


def test_nodes_that_make_a_home_on_the_shared_file_system_at_once_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = [{"name": "ann", "uid": 2001, "home": "/fsx/home/ann"}]
    (bare(tmp_path) / "etc/skel").mkdir()
    (tmp_path / "etc/skel/.profile").touch()

    def another_node_does_it() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "uname", lambda: SimpleNamespace(nodename="another"))
            choose(["homes"])[0].apply(node_of(tmp_path, users=users))
        (tmp_path / "fsx/home/ann/.profile").write_text("ann's\n")

    node = node_of(tmp_path, _Meanwhile(tmp_path, another_node_does_it), users=users)
    assert _one("homes", node).ending is Ending.DONE
    assert [path.name for path in (tmp_path / "fsx/home").iterdir()] == ["ann"]
    assert (tmp_path / "fsx/home/ann/.profile").read_text() == "ann's\n"


class _Covering(Programs):
    """Lustre covers what was in its mount point."""

    def _mount(self, line: str) -> None:
        super()._mount(line)
        if line.split()[2] == "lustre":
            (self._root / "fsx").rename(self._root / "covered")
            (self._root / "fsx").mkdir()


def test_homes_are_made_on_the_shared_file_system_not_below_its_mount_point(tmp_path: Path) -> None:
    user = {"name": "ann", "uid": 2001, "home": "/fsx/home/ann"}
    node = node_of(bare(tmp_path), _Covering(tmp_path), users=[user], fsx={"dns": "fs", "mountname": "m"})
    outcomes = walk(choose(["users", "lustre", "homes"]), node)
    assert [outcome.ending for outcome in outcomes] == [Ending.DONE] * 3
    assert (tmp_path / "fsx/home/ann").is_dir() and list((tmp_path / "covered").iterdir()) == []


def test_the_hooks_are_written_once_and_the_admins_settings_stay(tmp_path: Path) -> None:
    node = node_of(bare(tmp_path))
    with (tmp_path / "proc/mounts").open("a") as mounts:
        mounts.write("/dev/md0 /local xfs rw 0 0\n")
    assert _one("hooks", node).ending is Ending.DONE
    for name in ("prolog", "epilog", "task_prolog", "health", "reboot"):
        script = tmp_path / f"etc/slurm/holdfast/{name}.sh"
        does = "/run/holdfast/tasks/$SLURM_JOB_ID" if name == "task_prolog" else "from slurm.hooks.__main__ import main"
        assert script.stat().st_mode & 0o777 == 0o755 and does in script.read_text()
    settings = tmp_path / "etc/holdfast/hooks.yaml"
    assert settings.read_text().splitlines()[-1] == "local_disk: /local"
    assert _one("hooks", node).ending is Ending.NOTHING_TO_DO
    settings.write_text("drain: on\n")
    (tmp_path / "etc/slurm/holdfast/prolog.sh").write_text("exit 1\n")
    assert _one("hooks", node).ending is Ending.DONE, "a script that was changed is put right"
    assert settings.read_text() == "drain: on\n"
    assert _read_by_hooks(tmp_path) == ("on", "")


def _read_by_hooks(root: Path) -> tuple[str, str]:
    found, problem = read_settings(Places(root))
    return found.drain, problem


def test_settings_of_the_hooks_are_compiled_after_a_change_and_only_if_they_are_valid(tmp_path: Path) -> None:
    node = node_of(bare(tmp_path))
    assert _one("hooks", node).ending is Ending.DONE
    settings = tmp_path / "etc/holdfast/hooks.yaml"
    settings.write_text("drain: 'on'\n")
    assert "was changed after it was compiled" in _read_by_hooks(tmp_path)[1]
    assert _one("hooks", node).ending is Ending.DONE
    assert _read_by_hooks(tmp_path) == ("on", "")
    settings.write_text("drain: true\n")
    outcome = _one("hooks", node)
    assert outcome.ending is Ending.FAILED
    assert outcome.reason.endswith("hooks.yaml: drain: got True, expected one of on, off")
    assert _read_by_hooks(tmp_path)[0] == "on"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("check: deeep", "check: got 'deeep', expected one of prolog, quick"),
        ("drian: on", "drian: unknown key, did you mean drain?"),
        ("keep_memory_s: soon", "keep_memory_s: got 'soon', expected a number, at least 0"),
        ("keep_memory_s: -1", "keep_memory_s: got -1, expected a number, at least 0"),
        ("local_disk: local", "local_disk: got 'local', expected an absolute path without spaces"),
        ("max_drained: some", "max_drained: got 'some'"),
        ("- drain", "got a list, expected keys and values"),
        ("x: " + "y" * (1 << 16), "got more than 65536 bytes"),
    ],
)
def test_what_is_wrong_in_the_settings_of_the_hooks_is_said(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "hooks.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_hook_settings(path)
    assert str(caught.value).startswith(f"{path}: ") and said in str(caught.value)


def test_what_an_administrator_may_write_means_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "hooks.yaml"
    path.write_text("drain: on\nkeep_memory_s: 0\nmax_drained: 3\nlocal_disk: /local\ncheck: prolog\n")
    found, _ = read_hook_settings(path)
    assert (found.drain, found.keep_memory_s, found.max_drained) == ("on", 0.0, "3")
    path.write_text("")
    assert vars(read_hook_settings(path)[0]) == vars(HookSettings())


_AS_ROOT = """
from pathlib import Path
from lifecycle.provision.plan import choose
from lifecycle.provision.site import Site
from lifecycle.provision.step import ProvisionedNode, StepError
from slurm.command import run

node, step = ProvisionedNode(root=Path("/"), site=Site.from_mapping({}, "t"), run=run, fetch=None), choose(["hooks"])[0]
assert not step.is_done(node)
try:
    step.apply(node)
except StepError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="asks who owns the interpreter that root would run")
def test_hooks_that_others_could_change_are_refused(tmp_path: Path) -> None:
    """Our own interpreter, through a directory that anybody can write."""
    open_to_all = tmp_path / "venv"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    (open_to_all / "python").symlink_to(sys.executable)
    env = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    said = run((str(open_to_all / "python"), "-c", _AS_ROOT), env=env).stdout
    assert said.startswith(f"{open_to_all}: mode 777 of uid 0, group 0: others could change what Slurm runs as root")


def test_a_package_that_dpkg_was_killed_in_is_installed_again_before_any_other(tmp_path: Path) -> None:
    programs = Programs(bare(tmp_path))
    programs.packages, programs.torn = {"xfsprogs": "6", "sed": "4"}, {"xfsprogs": "reinstreq"}
    assert _one("packages", node_of(tmp_path, programs)).ending is Ending.DONE
    reinstalled = next(place for place, argv in enumerate(programs.ran) if "--reinstall" in argv)
    assert programs.ran[reinstalled][-2:] == ("install", "xfsprogs")
    assert programs.ran.index(("dpkg", "--configure", "-a")) > reinstalled
    assert programs.torn == {}


def test_logind_is_told_to_leave_users_memory_where_it_is_there(tmp_path: Path) -> None:
    programs = Programs(bare(tmp_path))
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    assert _one("logind", node_of(tmp_path, programs)).ending is Ending.DONE
    assert ("systemctl", "reload-or-try-restart", "systemd-logind.service") in programs.ran
    drop_in = tmp_path / "etc/systemd/logind.conf.d/90-holdfast.conf"
    assert drop_in.read_text().splitlines() == ["[Login]", "RemoveIPC=no"] and drop_in.stat().st_mode & 0o777 == 0o644
    programs.ran.clear()
    assert _one("logind", node_of(tmp_path, programs)).ending is Ending.NOTHING_TO_DO and not programs.ran
    drop_in.unlink()
    (tmp_path / "usr/lib/systemd/systemd-logind").unlink()
    assert _one("logind", node_of(tmp_path, programs)).ending is Ending.SKIPPED and not drop_in.exists()


def test_a_larger_memory_file_system_is_kept(tmp_path: Path) -> None:
    (bare(tmp_path) / "shm.size").write_text(str(2 << 30))
    node = node_of(tmp_path, shm_size="1G")
    assert [_one("shm", node).ending for _ in range(2)] == [Ending.DONE, Ending.NOTHING_TO_DO]
    assert (tmp_path / "shm.size").read_text() == str(2 << 30)
