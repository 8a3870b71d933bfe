"""What nodes run when they start: the package, on_create.sh and the site's settings, with their hashes."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path
from typing import Any

import yaml

import lifecycle
from holdfast.settings.validation import validated
from lifecycle.cluster.request import ClusterRequest
from lifecycle.errors import NodeUsageError
from lifecycle.heal.settings import HealSettings
from lifecycle.provision.site import Site

PROVISION, SETTINGS, LOGIN_SETTINGS, CHECK = "on_create.sh", "settings.sh", "settings_login.sh", "check.sh"
ENTRY, INIT_COMPLETE = "hyperpod_on_create.sh", "hyperpod_on_init_complete.sh"
_FSX_DNS, _FSX_MOUNT_NAME = "@FSX_DNS@", "@FSX_MOUNT_NAME@"  # settings.sh gets them as arguments
_HEAD = "#!/usr/bin/env bash\nset -euo pipefail\n"

# Who reboots and replaces a node. ParallelCluster replaces drained nodes by itself, and would do so during a check.
_HEAL: dict[str, dict[str, Any]] = {
    "hyperpod": {"heal": "on", "reboot": "hyperpod", "replace": "hyperpod"},
    "parallelcluster": {"heal": "off"},
    "pcs": {"heal": "on", "reboot": "slurm", "replace": "none"},
}


def scripts(request: ClusterRequest) -> dict[str, bytes]:
    """The files below `scripts/`, with SHA256SUMS.

    Raises:
        UsageError: the wheel cannot be read.
    """
    wheel = read_wheel(request)
    text = {PROVISION: Path(lifecycle.__path__[0], "on_create.sh").read_text(), SETTINGS: _settings(request, "")}
    if request.kind == "hyperpod":
        text |= {ENTRY: _entry(request.wheel.name), INIT_COMPLETE: _init_complete(request)}
    elif request.kind == "parallelcluster":
        text["head_hooks.sh"] = _head_hooks()
    else:
        text |= {LOGIN_SETTINGS: _settings(request, "login"), CHECK: _check()}
    files = {name: content.encode() for name, content in text.items()} | {request.wheel.name: wheel}
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(files.items()))
    return files | {"SHA256SUMS": sums.encode()}


def read_wheel(request: ClusterRequest) -> bytes:
    """The package.

    Raises:
        UsageError: it cannot be read, or is not a wheel of holdfast-hpc.
    """
    if not (request.wheel.name.startswith("holdfast_hpc-") and request.wheel.suffix == ".whl"):
        raise NodeUsageError(f"--wheel: got {request.wheel}, expected holdfast_hpc-VERSION-py3-none-any.whl")
    try:
        return request.wheel.read_bytes()
    except OSError as error:
        raise NodeUsageError(
            f"--wheel {request.wheel}: {error.strerror}; `python -m build --wheel` in Holdfast's tree makes it"
        ) from None


def source_argument(request: ClusterRequest) -> str:
    """What on_create.sh installs, for nodes that get the script alone."""
    digest = hashlib.sha256(read_wheel(request)).hexdigest()
    return f"{request.script_url}/{request.wheel.name}#sha256={digest}"


def node_settings(request: ClusterRequest, role: str) -> dict[str, Any]:
    """node.yaml of the cluster's nodes. HyperPod and ParallelCluster mount Lustre themselves.

    Without Lustre, the buckets are mounted by Mountpoint, with a cache on the node's disks.
    """
    found: dict[str, Any] = {"torch": request.torch} if request.torch else {}
    if request.kind == "pcs":
        found |= {"slurm": {"start": False}, "instance": request.instance}
        found |= {"role": role} if role else {}
        if request.has_fsx:
            found["fsx"] = {"dns": _FSX_DNS, "mountname": _FSX_MOUNT_NAME}
    if request.data and not request.has_fsx:
        found["s3"] = [_mount(url) for url in request.data]
    Site.from_mapping(found, "node.yaml")
    return found


def _mount(url: str) -> dict[str, Any]:
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    found = {"bucket": bucket, "mount": f"/s3/{bucket}"}
    return found | ({"prefix": f"{prefix.rstrip('/')}/"} if prefix else {})


def _settings(request: ClusterRequest, role: str) -> str:
    """A script that writes /etc/holdfast/*.yaml."""
    heal = _HEAL[request.kind]
    validated(HealSettings, heal, source="heal.yaml")
    files = {"node.yaml": node_settings(request, role), "heal.yaml": heal}
    lines = [f"{_HEAD}umask 022\nmkdir -p /etc/holdfast"]
    for name, content in files.items():
        text = yaml.safe_dump(content, sort_keys=False) if content else "{}\n"
        lines.append(f"cat >/etc/holdfast/{name} <<'HOLDFAST'\n{text}HOLDFAST")
    if "fsx" in files["node.yaml"]:
        lines.append(f'sed -i "s|{_FSX_DNS}|$1|; s|{_FSX_MOUNT_NAME}|$2|" /etc/holdfast/node.yaml')
    return "\n".join(lines) + "\n"


def _entry(wheel: str) -> str:
    """OnCreate of HyperPod, which downloads all scripts: it checks them, then provisions the node."""
    return (
        f'{_HEAD}cd "$(dirname "${{BASH_SOURCE[0]}}")"\nsha256sum --quiet -c SHA256SUMS\nbash {SETTINGS}\n'
        f"exec bash {PROVISION} --source {shlex.quote(f'./{wheel}')}\n"
    )


def _init_complete(request: ClusterRequest) -> str:
    """OnInitComplete of HyperPod's controller: includes Holdfast's lines in slurm.conf, once.

    The line of DEFAULT comes first, so that HyperPod's partitions do not inherit PreemptMode of the cluster.
    """
    lines = [f"{name}={value}" for name, value in request.slurm_settings().items()]
    first = ""
    if request.is_elastic:
        boost = " ".join(f"{name}={value}" for name, value in request.boost_settings().items())
        lines.append(f"PartitionName=boost Nodes=ALL {boost}")
        first = 'sed -i "1i PartitionName=DEFAULT PreemptMode=OFF" "$conf"\n    '
    accounts = "".join(f"{command}\n" for command in request.accounting_commands())
    text = "\n".join(lines)
    return (
        f"{_HEAD}conf=${{SLURM_CONF:-/opt/slurm/etc/slurm.conf}}\n"
        f'cat >"$(dirname "$conf")/holdfast.conf" <<\'HOLDFAST\'\n{text}\nHOLDFAST\n'
        'if ! grep -q "^Include holdfast.conf" "$conf"; then\n'
        f"    {first}echo 'Include holdfast.conf' >>\"$conf\"\nfi\nsystemctl restart slurmctld\n{accounts}"
    )


def _head_hooks() -> str:
    """Links the hooks into the directories from which ParallelCluster's own prolog and epilog run scripts."""
    return (
        f"{_HEAD}for hook in prolog epilog; do\n    mkdir -p /opt/slurm/etc/scripts/$hook.d\n"
        "    ln -sfn /etc/slurm/holdfast/$hook.sh /opt/slurm/etc/scripts/$hook.d/90_holdfast\ndone\n"
    )


def _check() -> str:
    """NodeReady of PCS: a node that fails the check does not enter service."""
    return f"{_HEAD}exec /opt/holdfast/bin/holdfast node check --level quick\n"
