"""A job's facts and its report: complete at any moment of the job, safe to pass on, one file."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from history_kit import GROWN, HANG, LOST_NODE, START, WHOLE, event, job_folder

from ckpt import CheckpointConfig
from launcher.cli import main
from launcher.history.fields import EVENTS, as_event
from launcher.history.status import status_of
from launcher.job.registry import KnownJob, find_job
from launcher.report import charts
from launcher.report.facts import FactsFold, facts_of
from launcher.report.page import report_page
from launcher.report.settings import HIDDEN, shown_settings
from launcher.report.tables import tables_of
from launcher.report.timeline import CLASSES, Timeline
from launcher.screen.job import job_lines

KNOWN = KnownJob(job_id="7", name="gpt", cluster="local", folder=Path("/nowhere"), nodes=2, spares=1)
HOSTILE = "</title><script>alert(1)</script><img src=x onerror=alert(2)>'\"&{{7*7}}\x00\x1b[31m"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


class Tags(HTMLParser):
    """The tags of a page, each with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def report_of(folder: Path, *options: str) -> str:
    assert main(["report", str(folder), "-o", "out.html", *options]) == 0
    return Path("out.html").read_text()


def test_each_second_of_a_job_belongs_to_one_class() -> None:
    facts = facts_of(WHOLE)
    assert sum(facts.time_s.values()) == pytest.approx(251)
    assert facts.time_s == pytest.approx(
        {
            "productive": 10 + 35 + 21 + 23 + 40,  # of 20 steps in the first attempt, 10 were kept
            "lost_steps": 10,
            "start": 9 + 8,
            "restore": 1 + 1 + 1 + 1 + 2,
            "recovery": 9 + 9,
            "hang": 15,
            "resize": 6,
            "queue": 49,
            "end": 1,
        }
    )
    assert facts.status.ettr == pytest.approx(facts.time_s["productive"] / 251)


@pytest.mark.parametrize("count", range(len(WHOLE) + 1))
def test_the_classes_add_up_after_every_event_of_a_job(count: int) -> None:
    facts = facts_of(WHOLE[:count], now_s=300)
    until_s = 251 if facts.has_ended else 300
    assert sum(facts.time_s.values()) == pytest.approx(until_s if count else 0)
    borders = [phase.start_s for phase in facts.phases][1:]
    assert borders == [phase.end_s for phase in facts.phases][:-1]


def test_a_job_that_reports_no_steps_is_not_said_to_start_for_ever() -> None:
    blind = [each for each in START if each["event"] not in ("first_step", "commit")]
    facts = facts_of([*blind, event(105, "attempt_end", attempt=0, outcome="done"), event(106, "job_end")])
    assert facts.time_s == pytest.approx({"start": 4, "restore": 1, "unmeasured": 100, "end": 1})


def test_a_requeue_without_a_recorded_end_counts_as_the_queue() -> None:
    """The batch host was lost, and nothing could write."""
    facts = facts_of([*START, event(100, "job_start", run_id="slurm-c-7", restart_count=1)], now_s=101)
    assert facts.time_s["queue"] == pytest.approx(79)


def test_a_second_run_in_the_same_folder_counts_the_time_between() -> None:
    again = [event(300, "job_start", run_id="x"), event(310, "job_end", outcome="cancelled")]
    facts = facts_of([*WHOLE, *again])
    assert sum(facts.time_s.values()) == pytest.approx(310)
    assert facts.time_s["queue"] == pytest.approx(49 + 49)


def test_the_facts_have_the_status_that_all_events_give() -> None:
    """Most of the commits are not folded into it."""
    chance = random.Random(7)
    for _ in range(50):
        events, time_s, step = list(START), 21.0, 10
        for _ in range(chance.randrange(1, 600)):
            time_s += chance.random()
            step += chance.randrange(2)
            tier = chance.choice(("memory", "nvme", "s3"))
            if chance.random() < 0.02:
                events.append(event(time_s, "problem", attempt=0, step=step, what="flush failed", failed=tier))
            stall = {"stall_s": chance.choice((0.25, 0.5))} if tier == "memory" else {}
            events.append(event(time_s, "commit", attempt=0, step=step, tier=tier, seconds=0.1, bytes=9, **stall))
        assert facts_of(events, now_s=5000).status == replace(status_of(events, now_s=5000), pace=())


def test_a_save_right_after_another_is_no_spike_of_the_speed() -> None:
    steady = [event(20 + 2 * n, "commit", attempt=0, tier="memory", step=10 + 10 * n) for n in range(60)]
    found = charts.rates(facts_of([*START[:8], *steady, event(138.1, "commit", attempt=0, tier="memory", step=602)]))
    assert found is not None and found.top == "5 steps/s"


def test_saves_that_hold_training_up_are_a_class_of_time_and_lower_ettr() -> None:
    stalled = [each | ({"stall_s": 2.0} if each["event"] == "commit" and each["tier"] == "memory" else {})
               for each in WHOLE]  # fmt: skip
    facts, before = facts_of(stalled), facts_of(WHOLE)
    assert facts.time_s["save_stall"] == pytest.approx(6)
    assert facts.time_s["productive"] == pytest.approx(before.time_s["productive"] - 6)
    assert sum(facts.time_s.values()) == pytest.approx(251) and facts.status.stall_s == 6
    assert facts.status.ettr == pytest.approx(facts.time_s["productive"] / 251)
    assert {tier.tier: tier.stall_s for tier in facts.tiers} == {"memory": 6, "s3": 0}
    shown = job_lines(KNOWN, facts.status, {}, now_s=251, width=80, height=24)
    assert any("saves have held training up for 6.0 s, 2.4%" in line.plain for line in shown)


def test_facts_can_be_read_at_any_time_without_a_change() -> None:
    fold = FactsFold()
    for each in WHOLE:
        fold.add(each)
        fold.facts(now_s=each["time"])
    assert fold.facts(now_s=400) == facts_of(WHOLE, now_s=400)


def test_the_report_says_what_checkpoints_take_of_a_nodes_memory() -> None:
    section = {"namespace": "t", "memory": {"every_steps": 10, "keep": 2}, "redundancy": {"scheme": "partner"}}
    spec = {"workers_per_node": 2, "checkpoint": asdict(CheckpointConfig.from_mapping(section))}
    tables = {table.name: table for table in tables_of(facts_of(WHOLE), spec)}
    (row,) = tables["memory"].rows
    assert row[:4] == (2, 1000, "partner", 2)
    assert row[4:] == (2 * 500, 2 * 500, 4 * 500, 1), "own shards of two slots, and as much of the partner"
    assert "memory" not in {table.name for table in tables_of(facts_of(WHOLE), {"checkpoint": {"other": 1}})}


def test_the_tables_have_every_attempt_fault_resize_tier_and_node() -> None:
    tables = {table.name: [dict(zip((c.name for c in table.columns), row, strict=True)) for row in table.rows]
              for table in tables_of(facts_of(WHOLE), {"name": "gpt"})}  # fmt: skip
    assert [row["rung"] for row in tables["attempts"]] == ["start", "spare", "workers", "grow", "requeue"]
    assert [row["restored_from"] for row in tables["attempts"]] == ["none", "memory", "memory", "memory", "s3"]
    assert [(row["kind"], row["node"], row["rank"]) for row in tables["faults"]] == [
        ("node_lost", "n2", None), ("hang", "n1", 0),
    ]  # fmt: skip
    assert [(row["rung"], row["step_resumed"]) for row in tables["recoveries"]] == [("spare", 10), ("workers", 40)]
    assert [(row["size"], row["to"], row["attempt"]) for row in tables["resizes"]] == [(2, 4, 3)]
    memory = next(row for row in tables["tiers"] if row["tier"] == "memory")
    assert (memory["commits"], memory["bytes"], memory["bytes_per_s"], memory["step"]) == (3, 3000, 2000.0, 61)
    assert {row["node"]: (row["state"], row["faults"]) for row in tables["nodes"]} == {
        "n1": ("active", 1), "n2": ("out", 1), "n3": ("active", 0), "n4": ("spare", 0), "n5": ("spare", 0),
    }  # fmt: skip
    assert [row["node"] for row in tables["nodes"] if row["allocation"] == "8"] == ["n4"]
    assert [(row["job_id"], row["nodes"], row["reason"]) for row in tables["boosters"]] == [("8", 2, "Resources")]
    assert [(row["part"], row["version"]) for row in tables["versions"]] == [("Python", "3.12.1"), ("torch", "2.13.0")]
    assert {row["badput_type"] for row in tables["time"]} >= {"PROGRAM_STARTUP", "WASTED_PROGRESS_FROM_DISRUPTION"}


def test_every_event_that_the_facts_read_is_one_that_is_written() -> None:
    read = {
        name.removeprefix("_on_") for fold in (FactsFold, Timeline) for name in vars(fold) if name.startswith("_on_")
    }
    assert read <= set(EVENTS)


MOMENTS = {"nothing": [], "starting": START[:4], "trains": START, "crashed": [*START, *LOST_NODE[:1]],
           "resizing": [*START, *LOST_NODE, *HANG, *GROWN[:7]], "ended": WHOLE}  # fmt: skip


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_report_is_whole_at_any_moment_of_a_job(moment: str, tmp_path: Path) -> None:
    page = report_of(job_folder(tmp_path / "j", MOMENTS[moment]))
    assert page.rstrip().endswith("</html>") and "gpt · j" in page
    assert ("has no end of the job yet" in page) is (moment != "ended")


def test_the_report_reads_a_record_that_is_cut_at_both_ends(tmp_path: Path) -> None:
    torn = json.dumps(event(260, "job_start"))[:30]
    for first in range(1, len(WHOLE), 3):
        page = report_of(job_folder(tmp_path / f"j{first}", WHOLE[first:], torn))
        assert "Where the time went" in page or first >= len(WHOLE) - 1
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk/events.jsonl").write_bytes(b"\x00\xff{[\n[1]\n{}\n" + json.dumps(START[0]).encode() + b"\n")
    assert "1 events" in report_of(tmp_path / "junk")


def test_the_report_needs_no_network_and_runs_nothing(tmp_path: Path) -> None:
    page = report_of(job_folder(tmp_path / "j", WHOLE))
    tags = Tags(page).found
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in tags}
    targets = [value for _, attributes in tags for name, value in attributes.items() if name in ("href", "src")]
    assert targets and all(str(target).startswith("data:text/csv") for target in targets)
    assert not re.search(r"url\(|@import|https?://", page)
    assert "default-src 'none'" in page


def hostile_events() -> list[dict[str, Any]]:
    """The whole job, with hostile text in every text field and every list of names."""
    made = []
    for each in WHOLE:
        own = EVENTS[each["event"]].fields
        texts = {name: HOSTILE for name, kind in own.items() if kind.words == "text"}
        lists = {name: [HOSTILE, "n1"] for name, kind in own.items() if kind.words.startswith("list")}
        made.append(each | texts | lists | {"node": HOSTILE})
    return [*made[:-1], event(240, "problem", what=HOSTILE, detail=HOSTILE, node=HOSTILE), made[-1]]


@pytest.mark.parametrize("length", [4, len(WHOLE) + 1])
def test_text_of_others_is_shown_and_never_run(length: int, tmp_path: Path) -> None:
    events = [dict(found) for each in hostile_events()[:length] if (found := as_event(each)) is not None]
    page = report_of(job_folder(tmp_path / "j", events, name=HOSTILE, args=[HOSTILE], script=HOSTILE))
    tags = Tags(page).found
    assert not {"script", "img"} & {tag for tag, _ in tags}
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on")]
    assert "&lt;script&gt;" in page and "49" not in re.findall(r"\{\{(.*?)\}\}", page)
    live = report_page(find_job(str(tmp_path / "j")), facts_of(events), nonce="N")
    assert [attributes.get("nonce") for tag, attributes in Tags(live).found if tag == "script"] == ["N"]


def test_csv_has_every_table_and_no_formulas(tmp_path: Path) -> None:
    evil = [event(241, "problem", what="=HYPERLINK(1)", detail="+1", node="@x")]
    assert main(["report", str(job_folder(tmp_path / "j", [*WHOLE[:-1], *evil, WHOLE[-1]])), "--csv", "out"]) == 0
    files = {path.stem: list(csv.DictReader(io.StringIO(path.read_text()))) for path in Path("out").glob("*.csv")}
    assert files.keys() >= {
        "time",
        "attempts",
        "faults",
        "recoveries",
        "tiers",
        "nodes",
        "resizes",
        "boosters",
        "settings",
    }
    assert len(files["attempts"]) == 5 and files["faults"][0]["node"] == "n2"
    assert files["problems"][0]["what"] == "'=HYPERLINK(1)" and files["problems"][0]["node"] == "'@x"


def test_json_has_the_same_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(job_folder(tmp_path / "j", WHOLE)), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["time_s"] == pytest.approx(dict(facts_of(WHOLE).time_s))
    assert [attempt["rung"] for attempt in found["attempts"]] == ["start", "spare", "workers", "grow", "requeue"]
    assert found["status"]["ettr"] and found["settings"]["name"] == "gpt" and found["tiers"][0]["bytes_per_s"]


def test_the_settings_in_a_report_have_no_secrets(tmp_path: Path) -> None:
    spec = {
        "name": "gpt", "args": ["--lr", "3e-4", "--wandb-token", "S3CRET", "--api-key=S3CRET", "--url", "https://u:S3CRET@h/p?q=S3CRET"],
        "env": {"WANDB_API_KEY": "S3CRET", "PLAIN": "S3CRET"}, "notify": {"webhook": "https://hooks/S3CRET"},
        "checkpoint": {"s3": {"url": "s3://bucket/prefix", "secret_key": "S3CRET"}, "nvme": None},
    }  # fmt: skip
    shown = dict(shown_settings(spec))
    assert shown["args"] == f"--lr 3e-4 --wandb-token {HIDDEN} --api-key={HIDDEN} --url https://h/p"
    assert shown["env.PLAIN"] == HIDDEN and shown["checkpoint.s3.url"] == "s3://bucket/prefix"
    assert "S3CRET" not in report_of(job_folder(tmp_path / "j", WHOLE, **spec))


def test_a_long_record_gives_a_small_page(tmp_path: Path) -> None:
    """Its tables are cut, with a word, and its curves are thinned."""
    fold, time_s = FactsFold(), 0.0
    for number in range(1500):
        for each in (*START[4:], *LOST_NODE[:3]):
            fold.add(each | {"time": time_s + each["time"]} | ({"attempt": number} if each["attempt"] == 0 else {}))
        fold.add(event(time_s + 31.5, "problem", what=f"problem {number}", detail="x" * 300))
        time_s += 40
    facts = fold.facts(now_s=time_s)
    assert len(facts.attempts) == 1500 and len(facts.points) < 1200 and len(facts.problems) <= 200
    page = report_page(find_job(str(job_folder(tmp_path / "j", []))), facts)
    assert "The last 500 of 1500 rows" in page
    assert len(page) < 5_000_000


def test_a_report_cannot_go_to_a_url_and_names_a_file_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(job_folder(tmp_path / "j", WHOLE))
    assert main(["report", folder, "-o", "s3://bucket/x.html"]) == 2
    assert main(["report", folder, "-o", "missing/x.html"]) == 1
    assert "missing" in capsys.readouterr().err


def test_the_classes_of_time_have_a_colour_each() -> None:
    style = (Path(__file__).parents[2] / "launcher/report/templates/style.css").read_text()
    assert [name for name in (*CLASSES, "training") if f".c-{name}" not in style] == []
