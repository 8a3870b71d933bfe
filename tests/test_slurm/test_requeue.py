"""How long a requeued job waits, from the controller's configuration."""

from __future__ import annotations

import pytest

from slurm.requeue import may_expedite, requeue_delay


@pytest.mark.parametrize(
    ("config", "delay"),
    [
        ({}, (120, "AuthInfo=cred_expire is not set")),
        ({"AuthInfo": "(null)", "SchedulerParameters": "(null)"}, (120, "AuthInfo=cred_expire is not set")),
        ({"AuthInfo": "socket=/run/munge,cred_expire=70"}, (70, "AuthInfo=cred_expire=70")),
        (
            {"AuthInfo": "cred_expire=70", "SchedulerParameters": "bf_interval=1,requeue_delay=5"},
            (5, "SchedulerParameters=requeue_delay=5"),
        ),
        ({"SchedulerParameters": "no_requeue_delay=9"}, (120, "AuthInfo=cred_expire is not set")),
    ],
)
def test_the_delay_of_a_requeue(config: dict[str, str], delay: tuple[int, str]) -> None:
    assert requeue_delay(config) == delay


def test_an_expedited_requeue_is_found_where_the_cluster_has_it() -> None:
    assert may_expedite({"SlurmctldParameters": "cloud_dns,enable_expedited_requeue"})
    assert may_expedite({"SchedulerParameters": "enable_expedited_requeue"})
    assert not may_expedite({"SlurmctldParameters": "(null)"}) and not may_expedite({})
