"""node.yaml and the provider's files: what is wrong in them is said in one line, before anything is changed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast.settings.errors import SettingsError
from holdfast.settings.yaml_file import read_settings
from launcher.cli import main
from lifecycle.provision import command
from lifecycle.provision.provider import hyperpod, parallelcluster
from lifecycle.provision.site import Site
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
    with pytest.raises(SettingsError) as caught:
        Site.from_mapping(found, "node.yaml")
    assert str(caught.value).startswith("node.yaml: ") and said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_version_may_be_written_as_a_number() -> None:
    assert Site.from_mapping({"efa": 1.42}, "t").efa == "1.42"


def test_a_file_that_is_no_yaml_is_said_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    for text in ("a: [", "\t:", "- x\n"):
        path.write_text(text)
        with pytest.raises(SettingsError) as caught:
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
        ({"InstanceGroups": ["x"]}, _PARAMETERS, "InstanceGroups[0]: expected an object with Name and Instances"),
        (
            {"InstanceGroups": [{"Name": "x", "Instances": {}}]},
            _PARAMETERS,
            "expected an object with Name and Instances",
        ),
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
    with pytest.raises(SettingsError) as caught:
        hyperpod(*_files(tmp_path, resources, parameters), {"10.1.0.7"})
    assert said in str(caught.value) and "\n" not in str(caught.value)


def _group(name: str, kind: str, *instances: tuple[str | None, dict[str, str] | None], **more: Any) -> dict[str, Any]:
    listed = [
        {"InstanceName": f"{name}-{number}", "CustomerIpAddress": address, "InstanceLabel": label}
        for number, (address, label) in enumerate(instances, 1)
    ]
    return {
        "Name": name,
        "InstanceType": "ml.p5.48xlarge",
        "SlurmConfig": {"NodeType": kind},
        "Instances": listed,
        **more,
    }


def _layers(*names: str) -> dict[str, str]:
    return {f"network-node-layer-{number}": name for number, name in enumerate(names, 1)}


# The new form: roles and controllers by HyperPod's API, no provisioning_parameters.json.
_NEW = {
    "ClusterConfig": {
        "ClusterName": "train",
        "ClusterType": "Slurm",
        "SlurmConfig": {"PrimaryControllerIp": "10.1.0.1"},
    },
    "InstanceGroups": [
        _group("ctl", "Controller", ("10.1.0.1", None)),
        _group("log", "Login", ("10.1.0.2", None)),
        _group(
            "gpu",
            "Compute",
            ("10.1.0.7", _layers("nn-top", "nn-a", "nn-a1")),
            ("10.1.0.8", _layers("nn-top", "nn-a", "nn-a1")),
            ("10.1.0.9", _layers("nn-top", "nn-b", "nn-b1")),
            (None, None),
        ),
    ],
}


@pytest.mark.parametrize(
    ("address", "role", "controllers"),
    [("10.1.0.1", "controller", ""), ("10.1.0.2", "login", "10.1.0.1"), ("10.1.0.7", "compute", "10.1.0.1")],
)
def test_a_cluster_that_hyperpods_api_configures_needs_no_second_file(
    tmp_path: Path, address: str, role: str, controllers: str
) -> None:
    resources, _ = _files(tmp_path, _NEW, "")
    site = Site.from_mapping(hyperpod(resources, None, {address}), "HyperPod")
    assert (site.role, site.slurm.conf_server, site.fsx) == (role, controllers, None)
    assert site.instance == "p5.48xlarge" and site.nvme.mount == "/opt/dlami/nvme"


def _without(found: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != key}


def test_roles_are_read_from_the_groups_or_from_the_clusters_controllers(tmp_path: Path) -> None:
    groups_alone = {"ClusterConfig": {"ClusterName": "c"}, "InstanceGroups": _NEW["InstanceGroups"]}
    bare = [_without(group, "SlurmConfig") for group in _NEW["InstanceGroups"]]  # type: ignore[arg-type]
    two = {"PrimaryControllerIp": "10.1.0.1", "SecondaryControllerIps": ["10.1.0.2"]}
    said = {}
    for name, resources in (
        ("groups", groups_alone),
        ("cluster", {"ClusterConfig": {"SlurmConfig": two}, "InstanceGroups": bare}),
        ("top", {"SlurmConfig": two, "InstanceGroups": bare}),
        ("on a controller", {"ClusterConfig": {"SlurmConfig": {"PrimaryControllerIp": ""}}, "InstanceGroups": bare}),
    ):
        path, _ = _files(tmp_path, resources, "")
        site = hyperpod(path, None, {"10.1.0.7"})
        said[name] = (site["role"], site.get("slurm", {}).get("conf_server"))
    assert said == {
        "groups": ("compute", "10.1.0.1"),
        "cluster": ("compute", "10.1.0.1,10.1.0.2"),
        "top": ("compute", "10.1.0.1,10.1.0.2"),
        "on a controller": ("controller", None),
    }


def test_hyperpods_api_decides_over_the_older_file_which_may_still_name_lustre(tmp_path: Path) -> None:
    files = _files(tmp_path, _NEW, _PARAMETERS | {"controller_group": "gpu"})
    site = Site.from_mapping(hyperpod(*files, {"10.1.0.7"}), "HyperPod")
    assert site.role == "compute" and site.slurm.conf_server == "10.1.0.1"
    assert site.fsx is not None and site.fsx.mountname == "abcd"


def test_a_cluster_with_neither_form_is_told_what_it_lacks(tmp_path: Path) -> None:
    resources, _ = _files(tmp_path, _RESOURCES, "")
    with pytest.raises(SettingsError, match=r"got no SlurmConfig and no provisioning_parameters\.json, expected one"):
        hyperpod(resources, None, {"10.1.0.7"})


@pytest.mark.parametrize("empty", [{"Instances": [{"CustomerIpAddress": None}]}, {"Instances": None}, {}])
def test_another_group_that_is_being_made_stops_no_node(tmp_path: Path, empty: dict[str, Any]) -> None:
    resources = {"InstanceGroups": [{"Name": "new"} | empty, *_RESOURCES["InstanceGroups"]]}
    site = hyperpod(*_files(tmp_path, resources, _PARAMETERS), {"10.1.0.7"})
    assert site["slurm"] == {"conf_server": "10.1.0.1"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ClusterConfig": []}, "ClusterConfig: got list"),
        ({"ClusterConfig": {"SlurmConfig": "x"}}, "SlurmConfig: got str, expected an object"),
        ({"ClusterConfig": {"SlurmConfig": {"PrimaryControllerIp": "ctl"}}}, "got 'ctl', expected an IP address"),
        ({"ClusterConfig": {"SlurmConfig": {"SecondaryControllerIps": 7}}}, "got 7, expected a list of IP addresses"),
        ({"InstanceGroups": [_group("x", "Boss")]}, "got 'Boss', expected one of Controller, Login, Compute"),
    ],
)
def test_what_is_wrong_in_the_newer_form_is_said(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    resources, _ = _files(tmp_path, _NEW | changed, "")
    with pytest.raises(SettingsError) as caught:
        hyperpod(resources, None, {"10.1.0.7"})
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_the_network_nodes_of_the_instances_are_slurms_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resources, _ = _files(tmp_path, _NEW, "")
    assert main(["node", "slurm-conf", "--topology", str(resources)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "SwitchName=nn-a1 Nodes=ip-10-1-0-[7-8]",
        "SwitchName=nn-b1 Nodes=ip-10-1-0-9",
        "SwitchName=nn-a Switches=nn-a1",
        "SwitchName=nn-b Switches=nn-b1",
        "SwitchName=nn-top Switches=nn-a,nn-b",
    ]
    resources, _ = _files(tmp_path, _RESOURCES, "")
    assert main(["node", "slurm-conf", "--topology", str(resources)]) == 2
    assert "no instance has a label network-node-layer-N" in capsys.readouterr().err


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
def test_hyperpods_older_file_without_its_other_one_is_refused(tmp_path: Path) -> None:
    script = shutil.copy(_ON_CREATE, tmp_path)
    (tmp_path / "provisioning_parameters.json").write_text("{}")
    env = {"PATH": os.environ["PATH"], "HOLDFAST_HOME": str(tmp_path / "home")}
    env["SAGEMAKER_RESOURCE_CONFIG_PATH"] = str(tmp_path / "resource_config.json")
    done = run(("bash", str(script)), env=env, check=False)
    assert done.returncode == 2
    assert f"on_create.sh: got {tmp_path}/provisioning_parameters.json without {tmp_path}" in done.stderr
    assert not (tmp_path / "home").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root provisions")
@pytest.mark.parametrize("older", [True, False])
def test_a_hyperpod_node_is_provisioned_with_or_without_the_older_file(tmp_path: Path, older: bool) -> None:
    """The rest of on_create.sh, with a Holdfast that is installed and only prints its arguments."""
    script, home, log = shutil.copy(_ON_CREATE, tmp_path), tmp_path / "home", tmp_path / "log"
    (home / "bin").mkdir(parents=True)
    (home / "bin/python").write_text(f'#!/bin/bash\necho "$@" >{log}\n')
    (home / "bin/python").chmod(0o755)
    (home / "source").write_text(f"{tmp_path}/wheel\n")
    (tmp_path / "wheel").touch()
    (tmp_path / "resource_config.json").write_text(json.dumps(_NEW))
    if older:
        (tmp_path / "provisioning_parameters.json").write_text("{}")
    text = Path(script).read_text().replace("/etc/holdfast", f"{tmp_path}/etc").replace("/var/log", f"{tmp_path}/log.d")
    Path(script).write_text(text)
    env = {"PATH": os.environ["PATH"], "HOLDFAST_HOME": str(home)}
    env["SAGEMAKER_RESOURCE_CONFIG_PATH"] = str(tmp_path / "resource_config.json")
    done = run(("bash", str(script), "--source", f"{tmp_path}/wheel", "--dry-run"), env=env, check=False)
    assert done.returncode == 0, done.stderr
    asked = f"-I -m launcher node provision --resource-config {tmp_path}/resource_config.json --dry-run"
    assert log.read_text().split() == asked.split()
    assert (tmp_path / "etc/provisioning_parameters.json").exists() is older


@pytest.mark.skipif(os.geteuid() != 0, reason="only root provisions")
@pytest.mark.parametrize("there", ["", "python3.11"])
def test_a_node_whose_python3_is_too_old_is_given_another_one(tmp_path: Path, there: str) -> None:
    """Ubuntu 22.04, whose archive has python3.11; with a Holdfast that is installed."""
    tools, home, log = tmp_path / "tools", tmp_path / "home", tmp_path / "log"
    (home / "bin").mkdir(parents=True)
    (home / "source").write_text(f"{tmp_path}/wheel\n")
    (tmp_path / "wheel").touch()
    tools.mkdir()
    for name in ("bash", "cat", "dirname", "mkdir", "realpath", "sed", "touch", "chmod", "true", "cp"):
        (tools / name).symlink_to(str(shutil.which(name)))
    install = f"cp {tools}/true {tools}/python3.11"
    asks_for_it = f'[[ "$*" != *install\\ python3.11-venv* ]] || {install}'
    programs = {
        tools / "python3": "exit 1",  # to every question, also for its version
        tools / "ip": "",
        tools / "dpkg": "",
        tools / "dpkg-query": "",
        tools / "apt-get": f'echo "$@" >>{log}; {asks_for_it}',
        home / "bin/python": 'echo "provisioned"',
    } | ({tools / there: ""} if there else {})
    for path, body in programs.items():
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
    script = tmp_path / "on_create.sh"
    script.write_text(_ON_CREATE.read_text().replace("/etc/holdfast", f"{tmp_path}/etc"))
    env = {"PATH": str(tools), "HOLDFAST_HOME": str(home), "SAGEMAKER_RESOURCE_CONFIG_PATH": str(tmp_path / "none")}
    done = run((str(shutil.which("bash")), str(script), "--source", f"{tmp_path}/wheel"), env=env, check=False)
    assert (done.returncode, done.stdout) == (0, "provisioned\n"), done.stderr
    assert log.exists() is not bool(there)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root provisions")
@pytest.mark.parametrize("source", [(), ("--source", "holdfast"), ("--source", "holdfast-hpc")])
def test_a_node_is_not_given_what_an_index_has_under_a_name(tmp_path: Path, source: tuple[str, ...]) -> None:
    script = shutil.copy(_ON_CREATE, tmp_path)
    env = {"PATH": os.environ["PATH"], "HOLDFAST_HOME": str(tmp_path / "home")}
    done = run(("bash", str(script), *source), env=env, cwd=tmp_path, check=False)
    assert done.returncode == 2 and "expected a path that exists, a URL or s3://bucket/key" in done.stderr
    assert not (tmp_path / "home").exists()


def test_a_missing_file_of_hyperpod_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such file"):
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
    with pytest.raises(SettingsError) as caught:
        parallelcluster(facts)
    assert said in str(caught.value) and "\n" not in str(caught.value)
