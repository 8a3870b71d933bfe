"""What creates a cluster: requests that the services' own models accept, and create.sh against a stand-in for `aws`.

ParallelCluster's schema is checked where `make frameworks` has installed it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.settings.validation import validated
from launcher.cli import main
from lifecycle.cluster.calls import Call, check_calls
from lifecycle.cluster.command import cluster_files
from lifecycle.cluster.hyperpod import hyperpod_calls
from lifecycle.cluster.parallelcluster import parallelcluster_config
from lifecycle.cluster.pcs import pcs_calls
from lifecycle.cluster.request import ClusterRequest
from lifecycle.cluster.scripts import scripts
from lifecycle.errors import NodeUsageError
from lifecycle.heal.settings import HealSettings
from lifecycle.instance import known_types
from lifecycle.provision.site import Site
from slurm.conf import lint
from slurm.preemption_conf import lint_elastic

_ROLES = {
    "hyperpod": "arn:aws:iam::123456789012:role/nodes",
    "parallelcluster": "",
    "pcs": "arn:aws:iam::123456789012:instance-profile/AWSPCS-nodes",
}
_SECRET = "arn:aws:secretsmanager:us-east-1:123456789012:secret:db"
_FRAMEWORKS = Path(sys.prefix, "frameworks")


def _request(folder: Path, kind: str, **changed: Any) -> ClusterRequest:
    wheel = folder / "holdfast_hpc-0.3.0-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    given: dict[str, Any] = {
        "kind": kind, "name": "train", "region": "us-east-1", "instance": "p5.48xlarge", "nodes": 16, "spares": 1,
        "boosters": 8, "booster_capacity": "spot", "teams": {}, "capacity": "ondemand",
        "controller_instance": "m5.2xlarge", "wheel": wheel, "scripts": "s3://bucket/cluster",
        "subnet": "subnet-0123456789abcdef0", "security_group": "sg-0123456789abcdef0", "role": _ROLES[kind],
        "fsx": "", "fsx_mountname": "", "fsx_gib": 2400, "data": ("s3://data/imagenet",), "training_plan": "",
        "reservation": "", "database": "", "database_secret": "", "has_accounting": False,
        "slurm_version": "25.05", "image": "ami-0123456789abcdef0", "torch": "2.9.1",
    }  # fmt: skip
    return ClusterRequest(**given | changed)


def _cluster(calls: list[Call]) -> dict[str, Any]:
    return next(dict(call.request) for call in calls if call.operation == "CreateCluster")


_VARIANTS = [
    {},
    {"boosters": 0},
    {"teams": {"vision": 8, "language": 8}, "has_accounting": True, "database": "db:3306", "database_secret": _SECRET},
    {"fsx_gib": 0},
    {"fsx_gib": 0, "fsx": "fs-0123456789abcdef0", "fsx_mountname": "abcdef12", "data": ()},
]


@pytest.mark.parametrize("kind", ["hyperpod", "pcs"])
@pytest.mark.parametrize("changed", _VARIANTS)
def test_the_services_models_accept_every_request(tmp_path: Path, kind: str, changed: dict[str, Any]) -> None:
    request = _request(tmp_path, kind, **changed)
    check_calls(hyperpod_calls(request) if kind == "hyperpod" else pcs_calls(request))


@pytest.mark.parametrize("instance", known_types())
def test_a_launch_template_of_pcs_has_each_efa_interface_of_the_instance_type(tmp_path: Path, instance: str) -> None:
    request = _request(tmp_path, "pcs", instance=instance)
    calls = pcs_calls(request)
    check_calls(calls)
    templates = [call.request["LaunchTemplateData"] for call in calls if call.operation == "CreateLaunchTemplate"]
    cards = [interface["NetworkCardIndex"] for interface in templates[1]["NetworkInterfaces"]]
    assert cards == list(range(request.machine.efa))
    assert templates[1]["Placement"] == {"GroupName": "train-base"} and "Placement" not in templates[2]


def test_a_request_that_the_model_does_not_know_is_refused_with_the_place() -> None:
    call = Call(
        service="sagemaker",
        operation="CreateCluster",
        request={
            "ClusterName": "a_b",
            "NodeRecovery": "Sometimes",
            "Nodes": 3,
            "InstanceGroups": [{"InstanceCount": "1"}],
        },
    )
    with pytest.raises(NodeUsageError) as error:
        check_calls([call])
    text = str(error.value)
    assert ".ClusterName: got 'a_b', expected the form" in text and ".NodeRecovery: got 'Sometimes'" in text
    assert ".Nodes: unknown" in text and ".InstanceGroups[0].InstanceCount: got '1', expected integer" in text
    assert ".InstanceGroups[0].ExecutionRole: is missing" in text


def test_hyperpod_has_a_group_for_base_and_spares_and_one_for_boosters(tmp_path: Path) -> None:
    groups = {
        group["InstanceGroupName"]: group
        for group in _cluster(hyperpod_calls(_request(tmp_path, "hyperpod")))["InstanceGroups"]
    }
    assert {name: group["InstanceCount"] for name, group in groups.items()} == {"controller": 1, "base": 17, "extra": 8}
    assert groups["base"]["SlurmConfig"] == {"NodeType": "Compute", "PartitionNames": ["base"]}
    assert groups["extra"]["CapacityRequirements"] == {"Spot": {}} and groups["extra"]["MinInstanceCount"] == 0
    assert groups["base"]["InstanceStorageConfigs"][0]["FsxLustreConfig"]["MountPath"] == "/fsx"


@pytest.mark.parametrize("teams", [{}, {"vision": 8, "language": 8}])
def test_the_lines_that_hyperpods_controller_adds_pass_the_lints(tmp_path: Path, teams: dict[str, int]) -> None:
    request = _request(tmp_path, "hyperpod", teams=teams)
    conf = tmp_path / "slurm.conf"
    names = [group.name for group in request.groups]
    conf.write_text("".join(f"PartitionName={name} Nodes=ip-{i}\n" for i, name in enumerate(names)))
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "systemctl").symlink_to("/bin/true")
    script = tmp_path / "init.sh"
    script.write_bytes(scripts(request)["hyperpod_on_init_complete.sh"])
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_CONF": str(conf)}
    for _ in range(2):
        subprocess.run(["bash", str(script)], env=environment, check=True)
    whole = conf.read_text().replace("Include holdfast.conf", (tmp_path / "holdfast.conf").read_text())
    assert whole.count("PartitionName=boost") == 1 and whole.startswith("PartitionName=DEFAULT PreemptMode=OFF\n")
    assert [remark for remark in [*lint(whole), *lint_elastic(whole)] if remark.needed] == []


@pytest.mark.parametrize("kind", ["hyperpod", "parallelcluster", "pcs"])
def test_every_script_is_hashed_and_its_settings_are_valid(tmp_path: Path, kind: str) -> None:
    files = scripts(_request(tmp_path, kind, fsx_gib=0))
    sums = dict(reversed(line.split("  ")) for line in files.pop("SHA256SUMS").decode().splitlines())
    assert sums == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    assert files["on_create.sh"] == (Path(__file__).parents[2] / "lifecycle/on_create.sh").read_bytes()
    script = files["settings.sh"].decode().replace("/etc/holdfast", str(tmp_path / "etc"))
    subprocess.run(["bash", "-c", script], check=True)
    node = yaml.safe_load((tmp_path / "etc/node.yaml").read_text())
    assert Site.from_mapping(node, "node.yaml").s3[0].mount == "/s3/data"
    heal = yaml.safe_load((tmp_path / "etc/heal.yaml").read_text())
    assert validated(HealSettings, heal, source="heal.yaml").is_on is (kind != "parallelcluster")


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
@pytest.mark.parametrize("kind", ["hyperpod", "parallelcluster", "pcs"])
def test_the_scripts_pass_shellcheck(tmp_path: Path, kind: str) -> None:
    for name, data in cluster_files(_request(tmp_path, kind)).items():
        if name.endswith(".sh"):
            checked = subprocess.run(["shellcheck", "-e", "SC1091", "-"], input=data, capture_output=True, check=False)
            assert checked.returncode == 0, f"{name}: {checked.stdout.decode()}"


def test_pcs_provisions_before_slurmd_and_checks_before_service(tmp_path: Path) -> None:
    request = _request(tmp_path, "pcs")
    groups = [call.request for call in pcs_calls(request) if call.operation == "CreateComputeNodeGroup"]
    stages = groups[1]["nodeLifecycleActions"]["stages"]
    assert [script["name"] for script in stages["nodeBootstrapped"]] == ["settings", "provision"]
    assert [script["name"] for script in stages["nodeReady"]] == ["check"]
    files = scripts(request)
    for script in (script for stage in stages.values() for script in stage):
        source = script["scriptSource"]
        assert source["checksum"] == hashlib.sha256(files[source["scriptLocation"].rsplit("/", 1)[1]]).hexdigest()
    assert stages["nodeBootstrapped"][0]["arguments"] == ["${FSX_ID}.fsx.us-east-1.amazonaws.com", "${FSX_MOUNT_NAME}"]


def test_pcs_has_a_queue_for_boosters_over_all_nodes_below_the_others(tmp_path: Path) -> None:
    queues = {
        call.request["queueName"]: call.request
        for call in pcs_calls(_request(tmp_path, "pcs"))
        if call.operation == "CreateQueue"
    }
    settings = {
        name: {
            one["parameterName"]: one["parameterValue"] for one in queue["slurmConfiguration"]["slurmCustomSettings"]
        }
        for name, queue in queues.items()
    }
    assert settings["base"] == {"PriorityTier": "10", "PreemptMode": "OFF"}
    assert settings["boost"] == {"PriorityTier": "0", "PreemptMode": "REQUEUE", "GraceTime": "60"}
    assert [len(queues[name]["computeNodeGroupConfigurations"]) for name in ("base", "boost")] == [1, 2]


_AWS = """\
#!{python}
import json, os, sys
service, verb = sys.argv[1:3]
options = dict(zip(sys.argv[3::2], sys.argv[4::2]))
with open(os.environ["LOG"], "a") as log:
    log.write(json.dumps([service, verb, options.get("--cli-input-json")]) + "\\n")
if verb == os.environ.get("FAIL"):
    sys.exit("no capacity")
answers = {{"create-file-system": "fs-0a1b2c3d4e5f60718\\tmount123", "describe-file-systems": "AVAILABLE",
           "create-cluster": "pcs_0a1b2c", "get-cluster": "ACTIVE", "create-launch-template": "lt-0a1b2c3d",
           "create-compute-node-group": "pcs_9f8e7d", "get-compute-node-group": "ACTIVE"}}
print(answers.get(verb, ""))
"""


def test_create_sh_continues_after_a_failure_and_fills_in_what_was_made(tmp_path: Path) -> None:
    folder, tools = tmp_path / "made", tmp_path / "bin"
    for name, data in cluster_files(_request(tmp_path, "pcs")).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    tools.mkdir()
    (tools / "aws").write_text(_AWS.format(python=sys.executable))
    (tools / "aws").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "LOG": str(tmp_path / "log")}
    run = ["bash", str(folder / "create.sh")]
    assert subprocess.run(run, env=environment | {"FAIL": "create-queue"}, capture_output=True, check=False).returncode
    subprocess.run(run, env=environment, check=True, capture_output=True)
    sent = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    created = [verb for _, verb, _ in sent if verb.startswith("create-")]
    assert created.count("create-cluster") == created.count("create-file-system") == 1
    assert created.count("create-queue") == 4  # the first, which failed, and all three
    group = next(json.loads(text) for _, verb, text in sent if verb == "create-compute-node-group")
    assert group["clusterIdentifier"] == "pcs_0a1b2c" and group["customLaunchTemplate"]["id"] == "lt-0a1b2c3d"
    arguments = group["nodeLifecycleActions"]["stages"]["nodeBootstrapped"][0]["arguments"]
    assert arguments == ["fs-0a1b2c3d4e5f60718.fsx.us-east-1.amazonaws.com", "mount123"]
    assert not any("${" in (text or "") for _, _, text in sent)


@pytest.mark.skipif(
    not (_FRAMEWORKS / "pcluster").is_dir(), reason="ParallelCluster is not installed: `make frameworks` does it"
)
@pytest.mark.parametrize("changed", [*_VARIANTS, {"capacity": "block", "reservation": "cr-0123456789abcdef0"}])
def test_parallelclusters_own_schema_accepts_the_configuration(tmp_path: Path, changed: dict[str, Any]) -> None:
    config = parallelcluster_config(_request(tmp_path, "parallelcluster", **changed))
    check = """
import json, sys
from pcluster.schemas.cluster_schema import ClusterSchema
from pcluster.validators.slurm_settings_validator import SLURM_SETTINGS_DENY_LIST as deny
config = json.load(sys.stdin)
ClusterSchema(cluster_name="train").load(config)
slurm = config["Scheduling"]
given = {"SlurmConf": slurm["SlurmSettings"]["CustomSlurmSettings"],
         "Queue": [queue["CustomSlurmSettings"] for queue in slurm["SlurmQueues"]]}
for level, settings in given.items():
    names = {name.lower() for one in settings for name in one}
    bad = names.intersection(deny[level]["Global"])
    assert not bad, (level, bad)
"""
    loaded = subprocess.run(
        [sys.executable, "-c", check], input=json.dumps(config), text=True, capture_output=True, check=False,
        env={"AWS_DEFAULT_REGION": "us-east-1", "PATH": os.environ["PATH"], "PYTHONPATH": str(_FRAMEWORKS)},
    )  # fmt: skip
    assert loaded.returncode == 0, loaded.stderr


def test_parallelcluster_gets_base_nodes_placed_together_and_boosters_that_come_and_go(tmp_path: Path) -> None:
    scheduling = parallelcluster_config(_request(tmp_path, "parallelcluster"))["Scheduling"]
    base, extra = scheduling["SlurmQueues"]
    nodes = [
        (queue["ComputeResources"][0]["MinCount"], queue["ComputeResources"][0]["MaxCount"]) for queue in (base, extra)
    ]
    assert nodes == [(17, 17), (0, 8)] and extra["CapacityType"] == "SPOT"
    assert base["Networking"]["PlacementGroup"] == {"Enabled": True} and base["ComputeResources"][0]["Efa"]["Enabled"]
    names = [next(iter(one)) for one in scheduling["SlurmSettings"]["CustomSlurmSettings"]]
    assert "Prolog" not in names and "PartitionName" in names


@pytest.mark.parametrize(
    ("kind", "changed", "problem"),
    [
        ("hyperpod", {"teams": {"vision": 8}}, "--nodes: got 16, expected 8"),
        ("hyperpod", {"teams": {"boost": 16}}, "--team: got 'boost'"),
        ("hyperpod", {"role": ""}, "--role: missing"),
        ("hyperpod", {"has_accounting": True}, "--accounting: got no --database"),
        ("hyperpod", {"database": "db:x", "database_secret": "arn"}, "expected HOST or HOST:PORT"),
        ("hyperpod", {"reservation": "cr-1"}, "expected --training-plan"),
        ("pcs", {"training_plan": "arn"}, "expected --reservation"),
        ("pcs", {"image": ""}, "--image: missing"),
        ("pcs", {"scripts": "bucket"}, "expected s3://bucket/prefix"),
        ("parallelcluster", {"capacity": "block"}, "--capacity block: got no --reservation"),
        ("parallelcluster", {"fsx_gib": 1000}, "multiple of 1200"),
        ("parallelcluster", {"fsx": "fs-1", "fsx_mountname": "a"}, "got both"),
    ],
)
def test_a_request_that_cannot_be_is_refused_with_the_option(
    tmp_path: Path, kind: str, changed: dict[str, Any], problem: str
) -> None:
    with pytest.raises(NodeUsageError, match=problem):
        _request(tmp_path, kind, **changed)


def test_an_instance_type_with_an_unknown_number_of_efa_interfaces_is_refused(tmp_path: Path) -> None:
    request = dataclasses.replace(_request(tmp_path, "hyperpod"), instance="x9.large")
    with pytest.raises(NodeUsageError, match=r"--instance: got x9.large, expected one of p4d.24xlarge"):
        cluster_files(request)


def test_the_command_writes_a_new_directory_and_prints_what_creates_the_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = _request(tmp_path, "hyperpod").wheel
    arguments = ["cluster", "config", "--kind", "hyperpod", "--instance", "p5.48xlarge", "--nodes", "16"]
    arguments += ["--wheel", str(wheel), "--scripts", "s3://bucket/cluster", "--subnet", "subnet-0123456789abcdef0"]
    arguments += ["--security-group", "sg-0123456789abcdef0", "--region", "us-east-1", "--role", _ROLES["hyperpod"]]
    out = tmp_path / "out"
    assert main([*arguments, "-o", str(out)]) == 0
    assert f"bash {out / 'create.sh'}" in capsys.readouterr().out
    assert json.loads((out / "1_create-cluster.json").read_text())["ClusterName"] == "holdfast"
    assert main([*arguments, "-o", str(out)]) == 2
    assert "is there already" in capsys.readouterr().err
