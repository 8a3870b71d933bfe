"""Healing without a cluster: what is decided, what is believed, what is asked of AWS."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from launcher.history.events import EventLog
from lifecycle.errors import LifecycleError, SettingsError
from lifecycle.heal.history import Case, HealEvent, HealHistory, only_one
from lifecycle.heal.lemons import Incident, offenders, read_incidents
from lifecycle.heal.policy import held_back, next_action
from lifecycle.heal.settings import HealSettings
from lifecycle.heal.ways import Way, reboots, replacements
from slurm import Slurm, SlurmError
from slurm.command import Result
from slurm.hooks.drains import at_most, is_ours, reason, why
from slurm.records import Node

HOUR_S = 3600.0


def node(text: str = "", flags: str = "DRAIN", address: str = "10.0.0.5") -> Node:
    return Node(
        name="n1",
        address=address,
        state="IDLE",
        flags=frozenset(flags.split()),
        reason=text,
        partitions=(),
        cpus=8,
    )


def events(*told: tuple[float, str]) -> list[HealEvent]:
    return [HealEvent(time_s=time_s, node="n1", what=what, why="") for time_s, what in told]


@pytest.mark.parametrize(
    ("past", "replace", "expected"),
    [
        ([], "none", "reboot"),
        ([(0, "reboot"), (1, "failed")], "none", "lemon"),
        ([(0, "reboot"), (1, "failed")], "ec2", "replace"),
        ([(0, "reboot"), (9000, "returned")], "ec2", "replace"),  # 1000 s ago: it flaps
        ([(0, "reboot"), (1, "failed"), (2, "replace"), (3, "failed")], "ec2", "lemon"),
        ([(0, "reboot"), (1, "failed"), (2, "replace"), (9000, "returned")], "ec2", "lemon"),
        ([(0, "reboot"), (1, "returned")], "none", "reboot"),  # was well for long: another trouble
        ([(0, "reboot"), (1, "failed"), (2, "lemon"), (9000, "repaired")], "none", "reboot"),
        ([(0, "reboot"), (1, "returned"), (2, "reboot"), (3, "failed")], "none", "lemon"),
    ],
)
def test_a_reboot_first_then_a_replacement_then_it_is_a_lemon(
    past: list[tuple[float, str]], replace: str, expected: str
) -> None:
    settings = HealSettings(replace=replace)
    assert next_action(events(*past), settings, 10_000.0)[0] == expected


def test_a_node_that_flaps_is_not_rebooted_though_it_may_be_more_often() -> None:
    settings = HealSettings(reboots=3, replace="ec2")
    assert next_action(events((0, "reboot"), (9000, "returned")), settings, 10_000.0)[0] == "replace"
    assert next_action(events((0, "reboot"), (9000, "failed")), settings, 10_000.0)[0] == "reboot"


def test_reboots_of_one_trouble_are_counted_through_a_return_that_did_not_last() -> None:
    past = events((0, "reboot"), (1, "returned"), (2, "reboot"), (3, "failed"))
    assert next_action(past, HealSettings(reboots=2, replace="ec2"), 10_000.0)[0] == "replace"


def test_limits_hold_for_the_whole_cluster(tmp_path: Path) -> None:
    history = HealHistory(path=tmp_path / "heal.json")
    settings = HealSettings(max_drained="2", max_actions_per_hour=3)
    assert held_back(history, settings, 100, 0.0) == ""
    for name in ("a", "b"):
        case = Case(node=name, action="reboot", why="", since_s=0.0, slurmd_started="")
        history.note(HealEvent(time_s=0.0, node=name, what="reboot", why=""), case)
    assert "2 nodes are being healed" in held_back(history, settings, 100, 1.0)
    for name in ("a", "b"):
        history.note(HealEvent(time_s=10.0, node=name, what="returned", why=""), None)
    assert held_back(history, settings, 100, 11.0) == ""
    history.note(HealEvent(time_s=20.0, node="c", what="replace", why=""), None)
    assert "3 actions within the last hour" in held_back(history, settings, 100, 30.0)
    assert held_back(history, settings, 100, HOUR_S + 1) == ""


@pytest.mark.parametrize(("amount", "nodes", "expected"), [("10%", 4, 1), ("10%", 100, 10), ("0", 9, 0), ("3", 9, 3)])
def test_a_limit_is_a_number_or_a_share_of_one_node_at_least(amount: str, nodes: int, expected: int) -> None:
    assert at_most(amount, nodes) == expected


@pytest.mark.parametrize("amount", ["", "ten", "-1", "101%", "1.5"])
def test_a_limit_that_is_neither_is_refused(amount: str) -> None:
    with pytest.raises(SlurmError, match="max_drained: got"):
        at_most(amount, 4)


@pytest.mark.parametrize(
    ("text", "flags", "expected"),
    [
        ("holdfast: gpu_count: 7, expected 8 [root@2026-11-20T23:19:59]", "DRAIN", True),
        ("holdfast: x : reboot issued [slurm@2026-11-20T23:19:59]", "DRAIN REBOOT_ISSUED", True),
        ("holdfast: x [root@2026-11-20T23:19:59]", "", False),  # not drained
        ("holdfast: please look [ann@2026-11-20T23:19:59]", "DRAIN", False),
        ("not holdfast: x [root@2026-11-20T23:19:59]", "DRAIN", False),
        ("holdfast: x [ann@2026-11-20T23:19:59] [root@x", "DRAIN", False),
    ],
)
def test_a_drain_is_ours_by_its_reason_and_by_who_gave_it(text: str, flags: str, expected: bool) -> None:
    assert is_ours(node(text, flags)) is expected


def test_a_reason_comes_back_without_tag_and_author() -> None:
    assert why(node(f"{reason('a  b')} [root@2026-11-20T23:19:59]")) == "a b"


def settings_file(folder: Path, text: str) -> Path:
    path = folder / "heal.yaml"
    path.write_text(text)
    path.chmod(0o644)
    return path


def test_without_a_file_healing_is_off(tmp_path: Path) -> None:
    assert not HealSettings.read(tmp_path / "heal.yaml").is_on


def test_settings_are_read(tmp_path: Path) -> None:
    text = "heal: on\nreplace: command\ncommand: [/opt/bin/rma, '{node}']\nmax_drained: 3\nflap_s: 60\n"
    found = HealSettings.read(settings_file(tmp_path, text))
    assert (found.is_on, found.command, found.max_drained, found.flap_s) == (True, ("/opt/bin/rma", "{node}"), "3", 60)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("heel: on", "heel: unknown key, did you mean heal?"),
        ("heal: maybe", "heal: got 'maybe', expected one of on, off"),
        ("replace: command", "needs `command:"),
        ("command: [/opt/bin/rma]", "and nothing else does"),
        ("check: []", "returns only after a check"),
        ("check: holdfast", "check: got 'holdfast', expected a list"),
        ("reboots: -1", "expected a whole number, at least 0"),
        ("flap_s: .nan", "expected a number"),
        ("max_drained: lots", "max_drained: got 'lots'"),
        ("- heal", "expected keys and values"),
        ("heal: [", "heal.yaml: not valid YAML"),
    ],
)
def test_settings_that_are_not_understood_are_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        HealSettings.read(settings_file(tmp_path, text))
    assert said in str(caught.value)


def test_settings_that_others_can_write_are_refused(tmp_path: Path) -> None:
    path = settings_file(tmp_path, "heal: on")
    path.chmod(0o666)
    with pytest.raises(SettingsError, match="expected a file that only root can write"):
        HealSettings.read(path)


def test_the_history_outlives_its_healer(tmp_path: Path) -> None:
    history = HealHistory.read(tmp_path / "heal.json")
    case = Case(node="n1", action="reboot", why="x", since_s=1.0, slurmd_started="then")
    history.note(HealEvent(time_s=1.0, node="n1", what="reboot", why="x"), case)
    again = HealHistory.read(history.path)
    assert (again.cases, again.of("n1")) == ({"n1": case}, history.events)


@pytest.mark.parametrize(
    "text",
    ["{", "{}", '{"version": 2, "cases": {}, "events": []}', '{"version": 1, "cases": {"n1": {}}, "events": []}'],
)
def test_a_history_that_cannot_be_read_stops_healing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "heal.json"
    path.write_text(text)
    with pytest.raises(LifecycleError, match="no history of healing"):
        HealHistory.read(path)


def test_the_history_keeps_the_newest_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lifecycle.heal.history._KEEP_EVENTS", 3)
    history = HealHistory(path=tmp_path / "heal.json")
    for event in events(*((time_s, "reboot") for time_s in range(5))):
        history.note(event, None)
    assert [event.time_s for event in HealHistory.read(history.path).events] == [2, 3, 4]


def test_one_healer_at_a_time(tmp_path: Path) -> None:
    with (
        only_one(tmp_path / "heal.json"),
        pytest.raises(LifecycleError, match="another"),
        only_one(tmp_path / "heal.json"),
    ):
        pass


def test_a_lock_that_cannot_be_made_says_who_may() -> None:
    with (
        pytest.raises(LifecycleError, match="run this as root, or name another --state"),
        only_one(Path("/dev/null/x")),
    ):
        pass


IMAGE = "ami-12c6146b"  # one of moto's


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """An Auto Scaling group of two instances; a call tells them."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        scaling, ec2 = boto3.client("autoscaling"), boto3.client("ec2")
        scaling.create_launch_configuration(LaunchConfigurationName="c", ImageId=IMAGE, InstanceType="t3.micro")
        scaling.create_auto_scaling_group(
            AutoScalingGroupName="g",
            LaunchConfigurationName="c",
            MinSize=0,
            MaxSize=4,
            DesiredCapacity=2,
            AvailabilityZones=["us-east-1a"],
        )

        def running() -> list[dict[str, Any]]:
            only = [{"Name": "instance-state-name", "Values": ["running"]}]
            told = ec2.describe_instances(Filters=only)["Reservations"]
            return [instance for reservation in told for instance in reservation["Instances"]]

        yield running


def test_an_ec2_node_is_ended_and_its_group_starts_another(group: Callable[[], list[dict[str, Any]]]) -> None:
    sick, well = group()
    address = sick["PrivateIpAddress"]
    ways = replacements(Slurm(), HealSettings(replace="ec2"), lambda *_, **__: pytest.fail("no command is run"))
    ways["ec2"](node(address=address), "gpu lost")
    now = {instance["InstanceId"] for instance in group()}
    assert sick["InstanceId"] not in now
    assert well["InstanceId"] in now
    assert len(now) == 2  # the desired capacity stayed


def test_an_ec2_node_that_cannot_be_told_is_left_alone(group: Callable[[], list[dict[str, Any]]]) -> None:
    before = group()
    ways = replacements(Slurm(), HealSettings(replace="ec2"), lambda *_, **__: pytest.fail("no command is run"))
    with pytest.raises(LifecycleError, match=r"no single running EC2 instance has its NodeAddr 192\.0\.2\.1"):
        ways["ec2"](node(address="192.0.2.1"), "gpu lost")
    assert group() == before


def test_an_ec2_node_may_have_its_host_name_for_an_address(group: Callable[[], list[dict[str, Any]]]) -> None:
    sick, well = group()
    ways = replacements(Slurm(), HealSettings(replace="ec2"), lambda *_, **__: pytest.fail("no command is run"))
    ways["ec2"](node(address=sick["PrivateDnsName"]), "gpu lost")
    now = {instance["InstanceId"] for instance in group()}
    assert sick["InstanceId"] not in now and well["InstanceId"] in now


@pytest.fixture
def hyperpods_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stubber]:
    """HyperPod's client checks each call against the API's model; its answers are given."""
    known = {"InstanceGroups": [{"Name": "gpu", "SlurmConfig": {"NodeType": "Compute"}, "Instances": [
        {"CustomerIpAddress": "10.1.0.7", "InstanceId": "i-0123456789abcdef0"},
        {"CustomerIpAddress": "10.1.0.8", "InstanceId": None},
    ]}], "ClusterConfig": {"ClusterName": "train"}}  # fmt: skip
    file = tmp_path / "resource_config.json"
    file.write_text(json.dumps(known))
    monkeypatch.setattr("lifecycle.heal.ways.RESOURCE_CONFIG", file)
    client = boto3.client("sagemaker", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="y")
    monkeypatch.setattr("boto3.session.Session", lambda: SimpleNamespace(client=lambda service: client))
    with Stubber(client) as stubber:
        yield stubber


@pytest.mark.parametrize("address", ["10.1.0.7", "ip-10-1-0-7"])
@pytest.mark.parametrize("action", ["reboot", "replace"])
def test_hyperpods_api_is_asked_for_the_nodes_instance(hyperpods_api: Stubber, action: str, address: str) -> None:
    asked = {"ClusterName": "train", "NodeIds": ["i-0123456789abcdef0"]}
    hyperpods_api.add_response(f"batch_{action}_cluster_nodes", {"Successful": asked["NodeIds"]}, asked)
    hyperpod_ways(action)["hyperpod_api"](node(address=address), "gpu lost")
    hyperpods_api.assert_no_pending_responses()


def test_what_hyperpods_api_refuses_is_said(hyperpods_api: Stubber) -> None:
    refused = {"NodeId": "i-0123456789abcdef0", "ErrorCode": "InvalidInstanceStatus", "Message": "it is Pending"}
    hyperpods_api.add_response("batch_reboot_cluster_nodes", {"Failed": [refused]})
    with pytest.raises(LifecycleError, match="reboot n1: HyperPod: InvalidInstanceStatus: it is Pending"):
        hyperpod_ways("reboot")["hyperpod_api"](node(address="10.1.0.7"), "gpu lost")
    hyperpods_api.add_client_error("batch_replace_cluster_nodes", "AccessDenied", "no")
    with pytest.raises(LifecycleError, match=r"replace n1: .*AccessDenied"):
        hyperpod_ways("replace")["hyperpod_api"](node(address="10.1.0.7"), "gpu lost")


@pytest.mark.parametrize("address", ["10.1.0.8", "10.1.0.9"])
def test_a_node_without_an_instance_of_hyperpods_is_left_alone(hyperpods_api: Stubber, address: str) -> None:
    with pytest.raises(LifecycleError, match=f"the address {address}, expected one with an InstanceId"):
        hyperpod_ways("replace")["hyperpod_api"](node(address=address), "gpu lost")


def hyperpod_ways(action: str) -> Mapping[str, Way]:
    if action == "reboot":
        return reboots(Slurm())
    return replacements(Slurm(), HealSettings(), lambda *_, **__: pytest.fail("no command is run"))


def test_an_admins_command_is_given_the_node(tmp_path: Path) -> None:
    asked: list[list[str]] = []

    def run(argv: list[str], **_: object) -> Result:
        asked.append(argv)
        return Result(argv=tuple(argv), returncode=0, stdout="", stderr="", seconds=0.0)

    settings = HealSettings(replace="command", command=("/opt/rma", "{node}", "{address}", "--now"))
    replacements(Slurm(), settings, run)["command"](node(), "gpu lost")  # type: ignore[arg-type]
    assert asked == [["/opt/rma", "n1", "10.0.0.5", "--now"]]


def test_lemons_come_first_then_the_most_troubled(tmp_path: Path) -> None:
    events = EventLog(tmp_path / "events.jsonl")
    events.append("fault", node="n7", kind="user_error", reason="RuntimeError", time=20.0)
    events.append("node_out", node="n7", reason="no heartbeat for 2.5 s", time=21.0)
    events.append("node_out", node="n8", reason="cannot load torch", environment=True, time=22.0)  # the user's
    events.append("node_out", node="n9", reason="the connection closed", lost=True, time=23.0)
    events.append("node_back", node="n9", time=24.0)
    events.append("node_out", node="n6", reason="drained by root: a new kernel", cause="drained", time=25.0)  # wanted
    events.close()
    (of_a_job,) = read_incidents(tmp_path / "events.jsonl")
    assert (of_a_job.node, of_a_job.time_s, of_a_job.what) == ("n7", 21.0, "out of a job: no heartbeat for 2.5 s")

    path = tmp_path / "incidents.jsonl"
    rows = [{"time_s": 50.0, "node": "n3", "what": "NVRM: Xid (PCI:0000:01:00): 79", "job": 7, "uid": 1000}] * 4
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"time_s": 51.0, "no')
    told = [
        HealEvent(time_s=1.0, node="n4", what="reboot", why="too old"),
        *(HealEvent(time_s=20.0 + at, node="n2", what=what, why="w") for at, what in enumerate(("reboot", "returned"))),
        *(HealEvent(time_s=30.0 + at, node="n1", what=what, why="w") for at, what in enumerate(("reboot", "failed"))),
        HealEvent(time_s=40.0, node="n1", what="lemon", why="1 reboots in vain; w"),
    ]
    found = offenders(told, read_incidents(path), since_s=10.0)
    assert [(one.node, one.is_lemon, one.troubles) for one in found] == [
        ("n1", True, 2),
        ("n3", False, 4),
        ("n2", False, 1),
    ]
    assert found[1].last.startswith("NVRM: Xid")
    mended = [*told, HealEvent(time_s=60.0, node="n1", what="repaired", why="w")]
    assert [one.is_lemon for one in offenders(mended, [], since_s=10.0) if one.node == "n1"] == [False]
    assert offenders(told, [Incident(time_s=0.0, node="n9", what="x")], since_s=60.0) == []
