"""A job's metrics: valid OpenMetrics, with every metric that the dashboard and the alert rules ask for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from history_kit import START, WHOLE, event, job_folder
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from launcher.cli import main
from launcher.core.outcomes import JobOutcome
from launcher.history.status import STATES
from launcher.history.wording import state_style
from launcher.report.facts import facts_of
from launcher.report.metrics import ALERTS, GRAFANA, openmetrics
from lifecycle.heal.history import HealHistory
from lifecycle.health.verdict import Verdict
from lifecycle.metrics import of_checks, of_healing

_NAME = re.compile(r"holdfast_\w+")


def samples(text: str) -> dict[tuple[str, ...], float]:
    """The value of each sample, by its name and the values of its labels but the job's id."""
    return {
        (sample.name, *(value for label, value in sorted(sample.labels.items()) if label != "job_id")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_have_the_facts_of_the_job() -> None:
    found = samples(openmetrics("gpt", "7", facts_of(WHOLE)))
    assert found["holdfast_job_info", "local", "gpt", "slurm-c-7"] == 1
    assert (found["holdfast_job_state", "done"], found["holdfast_job_state", "training"]) == (1, 0)
    assert (found["holdfast_job_attempt",], found["holdfast_job_step",]) == (4, 120)
    assert found["holdfast_job_time_seconds", "hang"] == pytest.approx(15)
    assert found["holdfast_job_faults_total", "unknown", "unknown", "node_lost"] == 1, "of an older release"
    assert found["holdfast_job_attempts_total", "spare"] == 1
    assert found["holdfast_job_requeues_total",] == 1
    assert found["holdfast_job_tier_bytes_total", "memory"] == 3000
    assert found["holdfast_job_tier_step", "s3"] == 10
    assert (found["holdfast_job_nodes", "out"], found["holdfast_job_boosters", "ready"]) == (1, 1)
    assert sum(found["holdfast_job_state", state] for state in STATES) == 1
    running = samples(openmetrics("gpt", "7", facts_of(START, now_s=30)))
    assert running["holdfast_job_steps_per_second",] == pytest.approx(0.9)
    lost = facts_of([*START, event(25, "agents_lost", attempt=0, generation=0)], now_s=30)
    assert samples(openmetrics("gpt", "7", lost))["holdfast_job_redundancy_degraded",] == 1


def test_faults_are_counted_by_class_and_domain_and_slow_nodes_while_they_are_slow() -> None:
    fault = {"kind": "process_exit", "class": "gpu_memory", "domain": "user", "reason": "x"}
    slow = event(22, "straggler", attempt=0, node="n2", rank=1, factor=1.3, part="data")
    events = [*START, slow, event(25, "fault", attempt=0, **fault), event(26, "fault", attempt=0, **fault)]
    found = samples(openmetrics("gpt", "7", facts_of(events, now_s=30)))
    assert found["holdfast_job_faults_total", "gpu_memory", "user", "process_exit"] == 2
    assert found["holdfast_job_slow_nodes",] == 1
    over = [*START, slow, event(23, "straggler_over", attempt=0, node="n2")]
    assert samples(openmetrics("gpt", "7", facts_of(over, now_s=30)))["holdfast_job_slow_nodes",] == 0


def test_lost_steps_and_the_other_classes_are_the_whole_time() -> None:
    found = samples(openmetrics("gpt", "7", facts_of(WHOLE)))
    classes = [value for key, value in found.items() if key[0] == "holdfast_job_time_seconds"]
    assert sum(classes) == pytest.approx(found["holdfast_job_wall_seconds",])


def test_names_of_users_cannot_add_lines() -> None:
    name = 'x"} 1\nholdfast_evil{a="b\\'
    found = samples(openmetrics(name, name, facts_of(START, now_s=30)))
    assert ("holdfast_job_info", "local", name, "slurm-c-7") in found
    assert all(key[0].startswith("holdfast_job_") for key in found)


def queries() -> dict[str, str]:
    """Every query that the package ships, by the title of its panel or its alert."""
    panels = json.loads(GRAFANA.read_text())["panels"]
    found = {f"{panel['title']} {target['refId']}": target["expr"] for panel in panels for target in panel["targets"]}
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    return found | {rule["alert"]: rule["expr"] for rule in rules}


def test_every_metric_and_label_of_a_query_is_in_the_output_of_a_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    commits = [event(220 + step, "commit", attempt=4, tier="memory", step=90 + step) for step in (0, 10)]
    assert main(["metrics", str(job_folder(tmp_path / "7", [*WHOLE[:-2], *commits]))]) == 0
    families = list(text_string_to_metric_families(capsys.readouterr().out))
    checks = ({"name": "gpu_ecc", "status": "critical"},)
    verdict = Verdict(node="n1", time_s=1.0, boot_id="", level="quick", checks=checks)
    families += [*of_checks(verdict, "n1"), *of_healing(HealHistory(path=tmp_path), {"n1": "waits"}, 2.0)]
    labels: dict[str, set[str]] = {}
    values: set[str] = set(JobOutcome)
    for family in families:
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
            values |= set(sample.labels.values())
    asked = queries()
    assert len(asked) > 20
    for title, query in asked.items():
        names = _NAME.findall(query)
        assert names and not [name for name in names if name not in labels], f"{title}: {query}"
        for name, matchers in re.findall(r"(holdfast_\w+)\{([^}]*)\}", query):
            for label, value in re.findall(r'(\w+)\s*(?:=~|!=|=|!~)\s*"([^"]*)"', matchers):
                assert label in labels[name], f"{title}: {label}"
                assert value == "$job_id" or set(value.split("|")) <= values, f"{title}: {value}"
    shown = {name for query in asked.values() for name in _NAME.findall(query)}
    assert {name for name in labels if name.startswith("holdfast_job_")} - shown <= {
        "holdfast_job_info",
        "holdfast_job_start_time_seconds",
        "holdfast_job_tier_commits_total",
    }


def test_every_end_that_is_a_failure_raises_an_alert() -> None:
    failures = {state for state in STATES if state_style(state) == "bold red"}
    assert failures == set(re.findall(r'state=~"([^"]+)"', queries()["HoldfastJobFailed"])[0].split("|"))


def test_the_command_prints_the_dashboard_and_the_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "--grafana"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Holdfast jobs"
    assert main(["metrics", "--alerts"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["groups"]
    assert main(["metrics"]) == 2 and main(["metrics", "x", "--alerts"]) == 2
