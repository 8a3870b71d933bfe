"""What `cluster config --check` says about an account: moto where it has the service, recorded answers elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from lifecycle.cluster.account import AccountCheck, AccountReport
from lifecycle.cluster.request import ClusterRequest

_REGION = "us-east-1"
_PLAN = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/plan"


class _Account:
    """An account of moto with a subnet in each zone; quotas, plans and IAM answer as told."""

    def __init__(self) -> None:
        self.ec2 = boto3.client("ec2", region_name=_REGION)
        vpc = self.ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        self.subnets = {
            zone: self.ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.0.{number}.0/24", AvailabilityZone=zone)["Subnet"][
                "SubnetId"
            ]
            for number, zone in enumerate(("us-east-1a", "us-east-1b", "us-east-1c"))
        }
        boto3.client("s3", region_name=_REGION).create_bucket(Bucket="bucket")
        self.quota = 100.0
        self.plan: dict[str, Any] = {}
        self.decision = "allowed"
        self.reserved: dict[str, Any] = {}

    def client(self, service: str) -> Any:
        client = boto3.client(service, region_name=_REGION)
        if service == "ec2":
            client.get_paginator = self._offerings  # moto's zones of a type change with its data
            client.describe_capacity_reservations = self._reservations  # moto has none
        elif service == "service-quotas":
            names = ("ml.p5.48xlarge for cluster usage", "Running On-Demand P instances")
            quotas = [{"QuotaName": name, "Value": self.quota} for name in names]
            _stub(client, "list_service_quotas", {"Quotas": quotas})
        elif service == "sagemaker":
            _stub(client, "describe_training_plan", self.plan)
        elif service == "iam":
            result = {"EvalActionName": "s3:GetObject", "EvalDecision": self.decision}
            _stub(client, "simulate_principal_policy", {"EvaluationResults": [result]})
        return client

    def _reservations(self, **_: Any) -> dict[str, Any]:
        return {"CapacityReservations": [self.reserved]}

    def _offerings(self, operation: str) -> Any:
        assert operation == "describe_instance_type_offerings"
        pages = [{"InstanceTypeOfferings": [{"Location": zone} for zone in ("us-east-1b", "us-east-1c")]}]
        return type("Pages", (), {"paginate": lambda _, **options: pages})()


def _stub(client: Any, operation: str, answer: dict[str, Any]) -> None:
    stubber = Stubber(client)
    for _ in range(3):
        stubber.add_response(operation, answer)
    stubber.activate()


@pytest.fixture(scope="module")
def accounts() -> Iterator[_Account]:
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        yield _Account()


@pytest.fixture
def account(accounts: _Account) -> _Account:
    """The account, with as much as a cluster of 17 nodes needs."""
    accounts.quota, accounts.decision, accounts.plan, accounts.reserved = 100.0, "allowed", {}, {}
    return accounts


def _report(account: _Account, zone: str = "us-east-1b", kind: str = "hyperpod", **changed: Any) -> AccountReport:
    given: dict[str, Any] = {
        "kind": kind, "name": "train", "region": _REGION, "instance": "p5.48xlarge", "nodes": 16, "spares": 1,
        "boosters": 0, "booster_capacity": "ondemand", "teams": {}, "capacity": "ondemand",
        "controller_instance": "m5.2xlarge", "wheel": Path("w.whl"), "scripts": "s3://bucket/cluster",
        "subnet": account.subnets[zone], "security_group": "sg-1", "role": "arn:aws:iam::123456789012:role/nodes",
        "fsx": "", "fsx_mountname": "", "fsx_gib": 0, "data": (), "training_plan": "", "reservation": "",
        "database": "", "database_secret": "", "has_accounting": False, "slurm_version": "25.05", "image": "ami-1",
        "torch": "",
    }  # fmt: skip
    return AccountCheck(ClusterRequest(**given | changed), account.client).report()


def _detail(report: AccountReport, subject: str) -> str:
    return next(finding.detail for finding in report.findings if subject in finding.subject and not finding.is_ok)


def test_an_account_that_has_everything_is_ok(account: _Account) -> None:
    report = _report(account)
    assert report.is_ok, report.findings
    assert report.zones == ("us-east-1b", "us-east-1c")


def test_a_subnet_in_a_zone_without_the_type_is_named_with_those_that_fit(account: _Account) -> None:
    detail = _detail(_report(account, "us-east-1a"), "subnet")
    assert detail.startswith("in us-east-1a; expected one of subnet-")
    assert account.subnets["us-east-1b"] in detail and account.subnets["us-east-1c"] in detail


@pytest.mark.parametrize(("kind", "quota"), [("hyperpod", "for cluster usage"), ("pcs", "Running On-Demand P")])
def test_a_quota_below_the_nodes_is_named_with_both_numbers(account: _Account, kind: str, quota: str) -> None:
    account.quota = 16.0
    detail = _detail(_report(account, kind=kind), quota)
    expected = "16 instances, expected 17" if kind == "hyperpod" else "16 vCPUs, expected 3264"
    assert detail.startswith(expected) and "Service Quotas" in detail


@pytest.mark.parametrize(("zone", "is_ok"), [("us-east-1c", True), ("us-east-1b", False)])
def test_the_zone_of_a_training_plan_decides(account: _Account, zone: str, is_ok: bool) -> None:
    capacity = {
        "ReservedCapacityArn": _PLAN.replace("training-plan", "reserved-capacity"), "Status": "Active",
        "InstanceType": "ml.p5.48xlarge", "TotalInstanceCount": 17, "AvailabilityZone": "us-east-1c",
    }  # fmt: skip
    account.plan = {
        "TrainingPlanArn": _PLAN, "TrainingPlanName": "plan", "Status": "Active", "AvailableInstanceCount": 17,
        "ReservedCapacitySummaries": [capacity],
    }  # fmt: skip
    report = _report(account, zone, training_plan=_PLAN)
    assert report.zones == ("us-east-1c",) and report.is_ok is is_ok
    account.plan["AvailableInstanceCount"] = 3
    assert "3 free instances" in _detail(_report(account, training_plan=_PLAN), "training plan")


@pytest.mark.parametrize(
    ("changed", "is_ok"),
    [({}, True), ({"AvailableInstanceCount": 16}, False), ({"State": "expired"}, False),
     ({"InstanceType": "p4d.24xlarge"}, False), ({"AvailabilityZone": "us-east-1b"}, False)],
)  # fmt: skip
def test_a_reservation_has_to_have_the_type_the_number_and_the_subnets_zone(
    account: _Account, changed: dict[str, Any], is_ok: bool
) -> None:
    account.reserved = {
        "InstanceType": "p5.48xlarge", "AvailableInstanceCount": 17, "AvailabilityZone": "us-east-1c",
        "State": "active", **changed,
    }  # fmt: skip
    account.quota = 1e6
    report = _report(account, "us-east-1c", kind="pcs", reservation="cr-0123456789abcdef0")
    assert report.is_ok is is_ok
    if not is_ok and "AvailabilityZone" not in changed:
        assert "expected 17 p5.48xlarge, active" in _detail(report, "reservation")


def test_what_aws_refuses_to_tell_is_not_ok(account: _Account) -> None:
    report = _report(account, subnet="subnet-0123456789abcdef0")
    assert not report.is_ok and "not known: " in _detail(report, "subnet")


def test_a_bucket_that_is_missing_or_that_the_role_may_not_read_is_named(account: _Account) -> None:
    assert "NoSuchBucket" in _detail(_report(account, scripts="s3://other/cluster"), "bucket s3://other")
    account.decision = "implicitDeny"
    assert _detail(_report(account), "s3:GetObject on bucket").startswith("implicitDeny")
