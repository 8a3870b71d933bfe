"""What the account has for a cluster: quotas, offerings by zone, training plans, reservations, subnets, buckets.

Everything is read; nothing is created or changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from lifecycle.cluster.request import ClusterRequest

Client = Callable[[str], Any]  # a service's name -> boto3's client

_ON_DEMAND_QUOTA = "Running On-Demand P instances"  # of EC2, in vCPUs; p4, p5 and p6 share it


@dataclass(frozen=True, kw_only=True)
class AccountFinding:
    """A thing that the cluster needs of the account.

    Attributes:
        subject: what was asked.
        is_ok: whether the cluster can be created; None if AWS did not answer.
        detail: got and expected.
    """

    subject: str
    is_ok: bool | None
    detail: str


@dataclass(frozen=True, kw_only=True)
class AccountReport:
    """The findings, and the zones in which the cluster can be created, the best first."""

    findings: tuple[AccountFinding, ...]
    zones: tuple[str, ...]

    @property
    def is_ok(self) -> bool:
        return all(finding.is_ok for finding in self.findings)


class AccountCheck:
    """Asks an account about a cluster.

    Args:
        request: the cluster.
        client: makes a client of a service, in the cluster's region.
    """

    def __init__(self, request: ClusterRequest, client: Client) -> None:
        self._request = request
        self._client = client
        self._nodes = sum(group.nodes for group in request.groups)
        self._fixed = sum(group.nodes for group in request.groups if group.is_fixed)

    def report(self) -> AccountReport:
        zones = self._offered()
        reserved, of_reservation = self._reserved()
        fitting = sorted(zones & reserved if reserved is not None else zones)
        findings = [
            self._of_offerings(zones),
            *of_reservation,
            *self._guarded("subnet", lambda: self._of_subnet(set(fitting))),
            *self._guarded("quota", self._of_quota),
        ]
        for url in dict.fromkeys((self._request.scripts, *self._request.data)):
            findings += self._guarded(f"bucket {url}", lambda url=url: self._of_bucket(url))  # type: ignore[misc]
        return AccountReport(findings=tuple(findings), zones=tuple(fitting))

    def _guarded(self, subject: str, ask: Callable[[], Iterator[AccountFinding]]) -> list[AccountFinding]:
        """The findings; one that is not known if AWS refuses to answer."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return list(ask())
        except (BotoCoreError, ClientError) as error:
            return [AccountFinding(subject=subject, is_ok=None, detail=f"not known: {' '.join(str(error).split())}")]

    def _offered(self) -> set[str]:
        """The region's zones that have the instance type."""
        pages = self._client("ec2").get_paginator("describe_instance_type_offerings")
        filters = [{"Name": "instance-type", "Values": [self._request.instance]}]
        found = pages.paginate(LocationType="availability-zone", Filters=filters)
        return {offer["Location"] for page in found for offer in page["InstanceTypeOfferings"]}

    def _of_offerings(self, zones: set[str]) -> AccountFinding:
        what = f"{self._request.instance} in {self._request.region}"
        detail = f"offered in {', '.join(sorted(zones))}" if zones else "offered in no zone; expected another --region"
        return AccountFinding(subject=what, is_ok=bool(zones), detail=detail)

    def _reserved(self) -> tuple[set[str] | None, list[AccountFinding]]:
        """The zones of the training plan or reservation, None without one; and the findings about it."""
        zones: set[str] = set()
        if self._request.training_plan:
            return zones, self._guarded("training plan", lambda: self._of_plan(zones))
        if self._request.reservation:
            return zones, self._guarded("reservation", lambda: self._of_reservation(zones))
        return None, []

    def _of_plan(self, zones: set[str]) -> Iterator[AccountFinding]:
        name = self._request.training_plan
        plan = self._client("sagemaker").describe_training_plan(TrainingPlanName=name)
        parts = [
            part
            for part in plan.get("ReservedCapacitySummaries", ())
            if part["InstanceType"] == f"ml.{self._request.instance}" and part.get("AvailabilityZone")
        ]
        zones |= {part["AvailabilityZone"] for part in parts}
        free, status = plan.get("AvailableInstanceCount", 0), plan["Status"]
        places = ", ".join(sorted(zones)) or "no zone"
        detail = (
            f"status {status}, {free} free instances, ml.{self._request.instance} in {places}; "
            f"expected Active or Scheduled, {self._fixed} instances"
        )
        is_ok = status in ("Active", "Scheduled") and free >= self._fixed and bool(zones)
        yield AccountFinding(subject="training plan", is_ok=is_ok, detail=detail)

    def _of_reservation(self, zones: set[str]) -> Iterator[AccountFinding]:
        name = self._request.reservation
        answer = self._client("ec2").describe_capacity_reservations(CapacityReservationIds=[name])
        for found in answer["CapacityReservations"]:
            type_, free = found["InstanceType"], found["AvailableInstanceCount"]
            zone, state = found["AvailabilityZone"], found["State"]
            if type_ == self._request.instance:
                zones.add(zone)
            detail = (
                f"{free} free {type_} in {zone}, state {state}; expected {self._fixed} {self._request.instance}, active"
            )
            is_ok = type_ == self._request.instance and free >= self._fixed and state in ("active", "scheduled")
            yield AccountFinding(subject=f"reservation {name}", is_ok=is_ok, detail=detail)

    def _of_subnet(self, fitting: set[str]) -> Iterator[AccountFinding]:
        ec2 = self._client("ec2")
        mine = ec2.describe_subnets(SubnetIds=[self._request.subnet])["Subnets"][0]
        of_vpc = ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [mine["VpcId"]]}])["Subnets"]
        better = sorted(
            f"{one['SubnetId']} ({one['AvailabilityZone']})" for one in of_vpc if one["AvailabilityZone"] in fitting
        )
        is_fit = mine["AvailabilityZone"] in fitting
        advice = (
            f"one of {', '.join(better)}" if better else f"a subnet in {', '.join(sorted(fitting)) or 'another region'}"
        )
        detail = f"in {mine['AvailabilityZone']}" + ("" if is_fit else f"; expected {advice}")
        yield AccountFinding(subject=f"subnet {self._request.subnet}", is_ok=is_fit, detail=detail)
        free, needed = mine["AvailableIpAddressCount"], self._nodes + 1
        yield AccountFinding(
            subject="addresses", is_ok=free >= needed, detail=f"{free} free in the subnet, expected {needed} or more"
        )

    def _of_quota(self) -> Iterator[AccountFinding]:
        if self._request.kind == "hyperpod":
            name = f"ml.{self._request.instance} for cluster usage"
            yield self._quota("sagemaker", name, self._nodes, "instances")
        elif self._request.capacity != "block":  # capacity blocks have no quota of vCPUs
            types = self._client("ec2").describe_instance_types(InstanceTypes=[self._request.instance])
            needed = types["InstanceTypes"][0]["VCpuInfo"]["DefaultVCpus"] * self._nodes
            yield self._quota("ec2", _ON_DEMAND_QUOTA, needed, "vCPUs")

    def _quota(self, service: str, name: str, needed: int, unit: str) -> AccountFinding:
        pages = self._client("service-quotas").get_paginator("list_service_quotas").paginate(ServiceCode=service)
        values = [quota["Value"] for page in pages for quota in page["Quotas"] if quota["QuotaName"] == name]
        value = int(max(values, default=0))
        detail = f"{value} {unit}, expected {needed} or more"
        if value < needed:
            detail += "; ask for it in the console, Service Quotas: an increase takes days"
        return AccountFinding(subject=f"quota: {name}", is_ok=value >= needed, detail=detail)

    def _of_bucket(self, url: str) -> Iterator[AccountFinding]:
        """Whether the caller may list the bucket, and whether it is in the cluster's region."""
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        s3 = self._client("s3")
        region = s3.get_bucket_location(Bucket=bucket)["LocationConstraint"] or "us-east-1"
        s3.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1)
        is_near = region == self._request.region
        detail = f"may be listed, in {region}" + ("" if is_near else f"; expected {self._request.region}")
        yield AccountFinding(subject=f"bucket {bucket}", is_ok=is_near, detail=detail)
        if self._request.role.startswith("arn:") and ":role/" in self._request.role:
            yield self._role_reads(bucket)

    def _role_reads(self, bucket: str) -> AccountFinding:
        """Whether the nodes' role may read the bucket, as IAM simulates it."""
        answer = self._client("iam").simulate_principal_policy(
            PolicySourceArn=self._request.role,
            ActionNames=["s3:GetObject"],
            ResourceArns=[f"arn:aws:s3:::{bucket}/*"],
        )
        decision = answer["EvaluationResults"][0]["EvalDecision"]
        detail = f"{decision}, expected allowed: the nodes' role has to read it"
        return AccountFinding(subject=f"s3:GetObject on {bucket}", is_ok=decision == "allowed", detail=detail)
