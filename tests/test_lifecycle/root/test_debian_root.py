"""A bare Debian becomes a node: with real packages, disks and users; through power cuts; and twice without a change.

What no test machine can fetch or has is made here with the real thing's interface: EFA's installer, the packages of
Mountpoint and enroot, pyxis' sources, an S3 mount helper.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from root_kit import Machine, deb, loop_device, missing_programs, tar_gz, wait

from lifecycle.provision.plan import STEPS
from lifecycle.versions import pin, table
from slurm.command import run
from tests.test_ckpt.s3_kit import BUCKET, s3_server

pytestmark = [pytest.mark.provision, pytest.mark.timeout(1800)]
_CREATE = "/src/lifecycle/on_create.sh"
_RUN_S = 600.0

_EFA = """#!/bin/bash
# Amazon's installer as far as it is called: its options, where it installs, what it leaves.
set -eu
yes=no kmod=yes limits=yes
while [ $# -gt 0 ]; do
    case $1 in
    -y|--yes) yes=yes ;; -k|--skip-kmod) kmod=no ;; -l|--skip-limit-conf) limits=no ;; -n|--no-verify) ;;
    *) echo "unknown option $1" >&2; exit 1 ;;
    esac
    shift
done
[ $yes = yes ] || { echo "would ask" >&2; exit 1; }
[ $limits = no ]
mkdir -p /opt/amazon/efa/bin /opt/amazon/ofi-nccl/lib/x86_64-linux-gnu
printf '#!/bin/sh\\necho provider: efa\\n' > /opt/amazon/efa/bin/fi_info
chmod 755 /opt/amazon/efa/bin/fi_info
touch /opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so
printf '# EFA installer version: VERSION\\n# Packages installed:\\n' > /opt/amazon/efa_installed_packages
"""
_PYXIS = "install:\n\tmkdir -p /usr/local/lib/slurm\n\ttouch /usr/local/lib/slurm/spank_pyxis.so\n"
_MOUNT_S3 = '#!/bin/sh\nexec mount -t tmpfs "$1" "$2"\n'


def _mirror(folder: Path) -> dict[str, str]:
    """The files that cannot be fetched here, under the names they have at their sources; returns their checksums."""
    folder.mkdir(parents=True)

    def name(artifact: str) -> str:
        row = table()["artifacts"][artifact]
        words = {"version": row.get("version", ""), "arch": os.uname().machine, "deb_arch": "amd64"}
        return str(row["url"].format(**words)).rsplit("/", 1)[1]

    efa = pin().efa
    work = folder.parent / "work"
    return {
        "efa": tar_gz(
            folder / f"aws-efa-installer-{efa}.tar.gz",
            {"aws-efa-installer/efa_installer.sh": _EFA.replace("VERSION", efa)},
        ),
        "pyxis": tar_gz(folder / name("pyxis"), {"pyxis-1/Makefile": _PYXIS}),
        "mountpoint": deb(
            folder / name("mountpoint"),
            "mount-s3",
            {"usr/bin/mount-s3": "#!/bin/sh\n", "usr/sbin/mount.mount-s3": _MOUNT_S3},
            work / "s3",
        ),
        "enroot": deb(folder / name("enroot"), "enroot", {"usr/bin/enroot": "#!/bin/sh\n"}, work / "enroot"),
        "enroot-caps": deb(folder / name("enroot-caps"), "enroot-caps", {"usr/bin/caps": "#!/bin/sh\n"}, work / "caps"),
    }


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A bare machine with an empty disk, and the site's files."""
    if os.geteuid() != 0 or (lacking := missing_programs(("debootstrap", "unshare", "losetup", "dpkg-deb"))):
        pytest.skip("needs root" if os.geteuid() else f"needs {' '.join(lacking)}")
    folder = tmp_path_factory.mktemp("debian")
    machine = Machine.install(folder / "root")
    sums = _mirror(machine.root / "srv/mirror")
    device = loop_device(folder / "disk", 400 << 20)
    (machine.root / "srv/munge.key").write_bytes(os.urandom(64))
    site = {
        "container": False,
        "efa": pin().efa,
        "sha256": sums,
        "packages": ["make"],
        "nvme": {"devices": [device], "mount": "/local"},
        "shm_size": "96M",
        "enroot": True,
        "s3": [{"bucket": "data", "mount": "/s3/data"}],
        "users": [{"name": "ann", "uid": 2001}],
        "slurm": {"install": True, "munge_key": "/srv/munge.key"},
    }
    resources = {"InstanceGroups": [{"Name": "gpu", "Instances": [{"CustomerIpAddress": "127.0.0.1"}]}]}
    files = {
        "etc/holdfast/node.yaml": yaml.safe_dump(site),
        "opt/ml/resource_config.json": json.dumps(resources),
        "src/lifecycle/provisioning_parameters.json": json.dumps({"controller_group": "ctl"}),
    }
    for name, text in files.items():
        (machine.root / name).parent.mkdir(parents=True, exist_ok=True)
        (machine.root / name).write_text(text)
    yield machine
    run(("losetup", "--detach", device), check=False)


def _interrupted(machine: Machine, log: Path, until: str | Path) -> None:
    """Provision until a word is in the output or a file is there, and cut the power."""
    running = machine.power_on(f"{_CREATE} --mirror /srv/mirror", log)

    def reached() -> bool:
        assert running.poll() is None, f"it ended before {until}:\n{log.read_text()[-3000:]}"
        return until.exists() if isinstance(until, Path) else until in log.read_text()

    try:
        wait(reached, _RUN_S, f"{until} while provisioning")
    finally:
        machine.cut_power(running)


_TWICE = f"""
set -e
listing() {{
    find / /local /s3 -xdev \\( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /var/log \\
        -o -path /listings -o -name __pycache__ \\) -prune -o ! -type d -printf '%p %s %T@ %C@\\n' | sort
}}
mkdir -p /listings
{_CREATE} --mirror /srv/mirror > /listings/first 2>&1 || {{ cat /listings/first; exit 1; }}
listing > /listings/before
{_CREATE} --mirror /srv/mirror > /listings/second 2>&1 || {{ cat /listings/second; exit 1; }}
listing > /listings/after
mount > /listings/mounts
"""


def test_a_bare_debian_becomes_a_node_through_losses_of_power_at_every_step(machine: Machine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    _interrupted(machine, log, machine.root / "var/lib/dpkg/info/xfsprogs.list")  # dpkg is at work then
    for step in STEPS[1:]:
        _interrupted(machine, log, f" {step.name} ")
    running = machine.power_on(_TWICE, log)
    assert running.wait(timeout=_RUN_S) == 0, log.read_text()[-3000:]
    listings = machine.root / "listings"
    second = (listings / "second").read_text()
    assert "nothing to do (" in second.splitlines()[-1]
    assert ": failed" not in second and " done " not in second
    assert (listings / "before").read_text() == (listings / "after").read_text() != ""


def test_the_node_has_what_the_site_asked_for(machine: Machine) -> None:
    root, mounts = machine.root, (machine.root / "listings/mounts").read_text()
    assert " on /local type xfs " in mounts and "s3://data/ on /s3/data" in mounts
    assert "tmpfs on /dev/shm type tmpfs" in mounts and "size=98304k" in mounts
    assert "ann:x:2001:2001" in (root / "etc/passwd").read_text() and (root / "home/ann").is_dir()
    assert (root / "opt/amazon/efa_installed_packages").exists()
    assert (root / "etc/munge/munge.key").read_bytes() == (root / "srv/munge.key").read_bytes()
    assert (root / "usr/sbin/slurmd").exists() and (root / "usr/sbin/chronyd").exists()
    assert "LimitMEMLOCK=infinity" in (root / "etc/systemd/system/slurmd.service.d/90-holdfast.conf").read_text()
    assert (root / "etc/holdfast/hooks.yaml").read_text().endswith("local_disk: /local\n")
    prolog = (root / "etc/slurm/holdfast/prolog.sh").read_text()
    assert "/opt/holdfast/bin/python -ISc " in prolog and "/opt/holdfast/lib/python" in prolog
    log = (root / "var/log/holdfast/provision.log").read_text()
    assert "mkfs.xfs" in log and log.count("mkfs.xfs -q") == 1, "formatted once, whatever was cut"


def test_a_step_that_fails_is_named_with_the_way_on(machine: Machine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    (machine.root / "opt/amazon/efa_installed_packages").unlink()
    (machine.root / "var/cache/holdfast").rename(machine.root / "var/cache/holdfast.kept")
    script = f"mkdir /empty; {_CREATE} --mirror /empty --only efa"
    assert machine.power_on(script, log).wait(timeout=_RUN_S) == 1
    said = log.read_text()
    assert "failed at step efa: " in said and "cannot be downloaded" in said
    assert "Once the cause is fixed, run: holdfast node provision" in said


# What ParallelCluster does: the script alone in /tmp under a name of its own, its facts in cfnconfig, Args as they are.
_PARALLEL_CLUSTER = """
set -e
mkdir -p /etc/parallelcluster
cat > /etc/parallelcluster/cfnconfig <<'FACTS'
stack_name=train
cfn_region=us-east-1
cfn_scheduler=slurm
cfn_ephemeral_dir=/scratch
cfn_node_type=ComputeFleet
FACTS
echo planted > /tmp/pyproject.toml
export HOLDFAST_HOME=/opt/alone
on_node_configured() {
    script=$(mktemp)
    cat /src/lifecycle/on_create.sh > $script
    chmod 755 $script
    (cd / && env -u SAGEMAKER_RESOURCE_CONFIG_PATH $script "$@")
}
on_node_configured --source s3://BUCKET/none.whl#sha256=0 --only users && exit 3
on_node_configured --source "WHEEL#sha256=${RANDOM}" --only users && exit 4
on_node_configured --source "WHEEL#sha256=SUM" --mirror /srv/mirror --only users --only limits
/opt/alone/bin/python -I -c 'import lifecycle; print("from", lifecycle.__file__)'
sed -i s/ComputeFleet/HeadNode/ /etc/parallelcluster/cfnconfig
on_node_configured --source "WHEEL#sha256=SUM" --dry-run --json
"""


def test_parallelclusters_script_alone_gets_the_package_from_a_bucket(machine: Machine, tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps")
    bucket = tmp_path / "s3" / BUCKET
    run((*pip, "--wheel-dir", str(bucket), str(machine.root / "src")), timeout_s=_RUN_S)
    (wheel,) = bucket.glob("*.whl")
    log = tmp_path / "log"
    url, sum_ = f"s3://{BUCKET}/{wheel.name}", hashlib.sha256(wheel.read_bytes()).hexdigest()
    script = _PARALLEL_CLUSTER.replace("WHEEL", url).replace("BUCKET", BUCKET).replace("SUM", sum_)
    with s3_server(tmp_path / "s3") as server:
        facts = {"AWS_ENDPOINT_URL": server.endpoint_url, "AWS_DEFAULT_REGION": "us-east-1"}
        keys = {name: os.environ[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
        exports = "".join(f"export {name}={value}\n" for name, value in (facts | keys).items())
        assert machine.power_on(exports + script, log).wait(timeout=_RUN_S) == 0, log.read_text()[-3000:]
    said = log.read_text()
    assert f"on_create.sh: s3://{BUCKET}/none.whl: cannot be downloaded (" in said
    assert "DO NOT MATCH THE HASHES" in said
    assert "from /opt/alone/lib/python" in said
    assert (machine.root / "opt/alone/source").read_text() == f"{url}#sha256={sum_}\n"
    assert "ann:x:2001:2001" in (machine.root / "etc/passwd").read_text()
    head = {row["step"]: row for row in json.loads(said[said.rindex("\n[\n") :])}
    assert head["slurmd"]["detail"] == "a controller node has no slurmd" and head["hooks"]["plan"] == "skip"
