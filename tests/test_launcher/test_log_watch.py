"""Lines of workers' logs that rules of the job file name."""

from __future__ import annotations

from pathlib import Path

from launcher.runner.log_watch import LogWatch, last_met, tail

NAN = ("nan", r"loss is nan", "stop")
SLOW = ("slow", r"took \d{3,} s", "report")


def test_each_rule_is_met_once_by_each_rank_and_only_by_whole_lines(tmp_path: Path) -> None:
    logs = {0: tmp_path / "rank-0.log", 1: tmp_path / "rank-1.log"}
    watch = LogWatch()
    watch.follow([NAN, SLOW], logs)
    assert watch.look() == []
    logs[0].write_text("step 1\nloss is n")
    assert watch.look() == []
    with logs[0].open("a") as log:
        log.write("an\nloss is nan\n")
    logs[1].write_text("bar 10%\rstep took 300 s\n")
    assert [(met.rank, met.rule, met.action, met.line) for met in watch.look()] == [
        (0, "nan", "stop", "loss is nan"), (1, "slow", "report", "step took 300 s"),
    ]  # fmt: skip
    with logs[0].open("a") as log:
        log.write("loss is nan\n")
    assert watch.look() == []


def test_what_a_log_has_grown_by_beyond_a_look_is_passed_over(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("loss is nan\n" + "x" * (2 << 20) + "\nstep took 300 s\n")
    watch = LogWatch()
    watch.follow([NAN, SLOW], {0: log})
    assert [met.rule for met in watch.look()] == ["slow"]


def test_of_a_long_line_the_beginning_is_compared(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    watch = LogWatch()
    watch.follow([NAN, SLOW], {0: log})
    log.write_text("loss is nan" + "x" * 5000)
    assert watch.look() == []
    with log.open("a") as file:
        file.write("x" * 5000 + "step took 300 s\n")
    assert [met.rule for met in watch.look()] == ["nan"]


def test_the_end_of_a_log_demands_what_its_last_line_with_a_rule_demands(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("loss is nan\nstep took 300 s\nbye\n")
    assert last_met([NAN, SLOW], tail(log)) == ("nan", "stop")
    assert last_met([SLOW], tail(log)) is None
    assert tail(tmp_path / "none.log") == []
