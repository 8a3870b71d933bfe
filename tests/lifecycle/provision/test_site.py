"""node.yaml and the provider's files: what is wrong in them is said in one line, before anything is changed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import main
from lifecycle.errors import NodeUsageError
from lifecycle.provision import command
from lifecycle.provision.provider import hyperpod, parallelcluster
from lifecycle.provision.site import Site
from lifecycle.settings.yaml_file import read_settings
from slurm.command import run


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"huge_page": 3}, "huge_page: unknown key, did you mean huge_pages?"),
        ({"nvme": {"mnt": "/x"}}, "nvme.mnt: unknown key, did you mean mount?"),
        ({"fsx": {"dns": "x"}}, "fsx.mountname: missing, expected a word"),
        ({"role": "boss"}, "role: got 'boss', expected one of compute, controller, login"),
        ({"huge_pages": "many"}, "huge_pages: got 'many', expected a whole number, at least 0"),
        ({"huge_pages": True}, "huge_pages: got True, expected a whole number, at least 0"),
        ({"huge_pages": -1}, "huge_pages: got -1, expected a whole number, at least 0"),
        ({"memlock": "lots"}, "memlock: got 'lots', expected unlimited or KiB"),
        ({"packages": "vim"}, "packages: got 'vim', expected a list"),
        ({"users": [{"name": "root", "uid": 0}]}, "users[0].uid: got 0, expected a whole number, at least 1000"),
        ({"users": [{"name": "a b", "uid": 1000}]}, "users[0].name: got 'a b', expected a name of lower-case"),
        ({"nvme": {"mount": "/a/../etc"}}, "mount: got '/a/../etc', expected an absolute path"),
        ({"fsx": {"dns": "fs 1", "mountname": "m"}}, "fsx.dns: got 'fs 1', expected a word without spaces and commas"),
        ({"fsx": {"dns": "fs", "mountname": "m,rw"}}, "fsx.mountname: got 'm,rw', expected a word"),
        ({"s3": [{"bucket": "b", "mount": "/b", "prefix": "a b/"}]}, "s3[0].prefix: got 'a b/', expected a word"),
        ({"nvme": {"mount": "/a /b"}}, "mount: got '/a /b', expected an absolute path without spaces"),
        ({"nvme": {"mount": "/fsx"}, "fsx": {"dns": "d", "mountname": "m"}}, "expected each mount used once"),
        ({"nvme": {"devices": ["sda"]}}, "nvme.devices: got 'sda', expected paths below /dev"),
        ({"nvme": {"fs": "zfs"}}, "nvme.fs: got 'zfs', expected one of xfs, ext4"),
        ({"slurm": {"conf_server": "a\nSLURMD_OPTIONS=x"}}, "printable and in one line"),
        ({"sha256": {"efa": "abc"}}, "sha256.efa: got 'abc', expected 64 hexadecimal digits"),
        ({"sha256": {"pyxsi": "0" * 64}}, "sha256: got 'pyxsi', expected one of efa, gdrcopy"),
        ({"mirror": "http://x"}, "mirror: got 'http://x', expected a directory's path or s3://"),
        ([1], "got [1], expected a mapping (key: value)"),
    ],
)
def test_what_is_wrong_in_a_site_is_said(found: Any, said: str) -> None:
    with pytest.raises(NodeUsageError) as caught:
        Site.from_mapping(found, "node.yaml")
    assert str(caught.value).startswith("node.yaml: ") and said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_version_may_be_written_as_a_number() -> None:
    assert Site.from_mapping({"efa": 1.42}, "t").efa == "1.42"


def test_a_file_that_is_no_yaml_is_said_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    for text in ("a: [", "\t:", "- x\n"):
        path.write_text(text)
        with pytest.raises(NodeUsageError) as caught:
            read_settings(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


_RESOURCES = {
    "InstanceGroups": [
        {"Name": "ctl", "InstanceType": "ml.m5.xlarge", "Instances": [{"CustomerIpAddress": "10.1.0.1"}]},
        {"Name": "gpu", "InstanceType": "ml.p5.48xlarge", "Instances": [{"CustomerIpAddress": "10.1.0.7"}]},
    ]
}
_PARAMETERS = {
    "workload_manager": "slurm",
    "controller_group": "ctl",
    "login_group": "login",
    "fsx_dns_name": "fs-1.fsx.example",
    "fsx_mountname": "abcd",
}


def _files(folder: Path, resources: Any, parameters: Any) -> tuple[Path, Path]:
    paths = folder / "resource_config.json", folder / "provisioning_parameters.json"
    for path, found in zip(paths, (resources, parameters), strict=True):
        path.write_text(found if isinstance(found, str) else json.dumps(found))
    return paths


def test_hyperpods_files_say_what_this_node_is(tmp_path: Path) -> None:
    files = _files(tmp_path, _RESOURCES, _PARAMETERS)
    worker = Site.from_mapping(hyperpod(*files, {"10.1.0.7", "127.0.0.1"}), "HyperPod")
    assert (worker.role, worker.instance, worker.slurm.conf_server) == ("compute", "p5.48xlarge", "10.1.0.1")
    assert worker.fsx is not None and worker.fsx.dns == "fs-1.fsx.example"
    controller = Site.from_mapping(hyperpod(*files, {"10.1.0.1"}), "HyperPod")
    assert (controller.role, controller.slurm.conf_server) == ("controller", "")


@pytest.mark.parametrize(
    ("resources", "parameters", "said"),
    [
        ("{", _PARAMETERS, "cannot be read as JSON"),
        ("[]", _PARAMETERS, "got list, expected an object"),
        ({}, _PARAMETERS, "InstanceGroups: got NoneType, expected a list"),
        ({"InstanceGroups": [{"Name": "x"}]}, _PARAMETERS, "InstanceGroups[0]: expected an object with Name and Inst"),
        ({"InstanceGroups": [{"Instances": []}]}, _PARAMETERS, "Name: got None, expected text that is not empty"),
        (
            {"InstanceGroups": [{"Name": "x", "Instances": [{"CustomerIpAddress": "a;b"}]}]},
            _PARAMETERS,
            "CustomerIpAddress: got 'a;b', expected an IP address",
        ),
        ({"InstanceGroups": []}, _PARAMETERS, "expected one with an address of this node (10.1.0.7)"),
        ("[" * 100_000, _PARAMETERS, "cannot be read as JSON (maximum recursion depth"),
        (_RESOURCES, {}, "controller_group: got None, expected text that is not empty"),
        (
            _RESOURCES,
            {"controller_group": "ctl", "fsx_dns_name": "x"},
            "fsx_mountname: got None, expected text that is not empty",
        ),
        (_RESOURCES, "\x00", "cannot be read as JSON"),
    ],
)
def test_what_is_wrong_in_hyperpods_files_is_said(tmp_path: Path, resources: Any, parameters: Any, said: str) -> None:
    with pytest.raises(NodeUsageError) as caught:
        hyperpod(*_files(tmp_path, resources, parameters), {"10.1.0.7"})
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_word_of_hyperpods_that_no_site_can_have_is_said_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = _files(tmp_path, _RESOURCES, _PARAMETERS | {"fsx_dns_name": "a b"})
    monkeypatch.setattr(command, "_addresses", lambda: {"10.1.0.7"})
    named = ["--resource-config", str(files[0]), "--parameters", str(files[1])]
    assert main(["node", "provision", "--dry-run", *named]) == 2
    assert f"{files[0]}, {files[1]}: fsx.dns: got 'a b'" in capsys.readouterr().err


_ON_CREATE = Path(__file__).parents[3] / "lifecycle/on_create.sh"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root provisions")
@pytest.mark.parametrize("there", ["resource_config.json", "provisioning_parameters.json"])
def test_a_node_that_has_one_of_hyperpods_files_is_not_taken_for_another(tmp_path: Path, there: str) -> None:
    if Path("/etc/holdfast/provisioning_parameters.json").exists():
        pytest.skip("this machine has HyperPod's parameters")
    script = shutil.copy(_ON_CREATE, tmp_path)
    (tmp_path / there).write_text("{}")
    env = {"PATH": os.environ["PATH"], "HOLDFAST_HOME": str(tmp_path / "home")}
    env["SAGEMAKER_RESOURCE_CONFIG_PATH"] = str(tmp_path / "resource_config.json")
    done = run(("bash", str(script)), env=env, check=False)
    assert done.returncode == 2 and f"on_create.sh: got {tmp_path / there} without {tmp_path}" in done.stderr
    assert not (tmp_path / "home").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root provisions")
@pytest.mark.parametrize("source", [(), ("--source", "holdfast"), ("--source", "holdfast-hpc")])
def test_a_node_is_not_given_what_an_index_has_under_a_name(tmp_path: Path, source: tuple[str, ...]) -> None:
    script = shutil.copy(_ON_CREATE, tmp_path)
    env = {"PATH": os.environ["PATH"], "HOLDFAST_HOME": str(tmp_path / "home")}
    done = run(("bash", str(script), *source), env=env, cwd=tmp_path, check=False)
    assert done.returncode == 2 and "expected a path that exists, a URL or s3://bucket/key" in done.stderr
    assert not (tmp_path / "home").exists()


def test_a_missing_file_of_hyperpod_is_named(tmp_path: Path) -> None:
    with pytest.raises(NodeUsageError, match="no such file"):
        hyperpod(tmp_path / "none.json", tmp_path / "none.json", set())


# As aws-parallelcluster-cookbook's template writes it.
_CFN_CONFIG = """\
stack_name=train
cfn_preinstall="/opt/parallelcluster/scripts/fetch_and_run --execute-via-cfnconfig -preinstall"
cfn_preinstall_args=()
cfn_region=us-east-1
cfn_scheduler=slurm
cfn_ephemeral_dir=/scratch
cfn_proxy=NONE
cfn_node_type=ComputeFleet
cfn_cluster_user=ubuntu
"""


@pytest.mark.parametrize(
    ("kind", "role"), [("ComputeFleet", "compute"), ("HeadNode", "controller"), ("LoginNode", "login")]
)
def test_parallelclusters_file_says_what_this_node_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str, role: str
) -> None:
    facts = tmp_path / "cfnconfig"
    facts.write_text(_CFN_CONFIG.replace("ComputeFleet", kind))
    site = Site.from_mapping(parallelcluster(facts), "t")
    assert (site.role, site.nvme.mount, site.slurm.start) == (role, "/scratch", False)

    monkeypatch.setattr(command, "_CFN_CONFIG", facts)
    own = tmp_path / "node.yaml"
    own.write_text("container: false\nslurm: {munge_key: /srv/key}\n")
    assert main(["node", "provision", "--dry-run", "--json", "--only", "hooks", "--config", str(own)]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["plan"] == "skip") == (role != "compute") and role in ("compute", row["detail"].split()[1])


def test_what_a_site_says_goes_over_what_parallelcluster_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, own = tmp_path / "cfnconfig", tmp_path / "node.yaml"
    facts.write_text(_CFN_CONFIG)
    own.write_text("role: login\nslurm: {munge_key: /srv/key}\n")
    monkeypatch.setattr(command, "_CFN_CONFIG", facts)
    site = command._site(own, "", None, None)
    assert (site.role, site.slurm.munge_key, site.slurm.start) == ("login", "/srv/key", False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cfn_node_type: got '', expected HeadNode, ComputeFleet, LoginNode"),
        ("cfn_node_type=Batch", "cfn_node_type: got 'Batch'"),
        ("cfn_node_type='x", "cfn_node_type: got ''"),
        ("cfn_node_type=(HeadNode x)", "cfn_node_type: got ''"),
        (None, "cannot be read"),
    ],
)
def test_what_is_wrong_in_parallelclusters_file_is_said(tmp_path: Path, text: str | None, said: str) -> None:
    facts = tmp_path / "cfnconfig"
    if text is not None:
        facts.write_text(text)
    with pytest.raises(NodeUsageError) as caught:
        parallelcluster(facts)
    assert said in str(caught.value) and "\n" not in str(caught.value)
