"""Draws the pictures of docs/guide/observe.md and command_line.md anew, from a job on a real Slurm.

    python tests/flows/pictures.py [FOLDER]        default: docs/guide

The job loses a worker and a node, hangs, and grows by a booster. Its screens come from a terminal of tmux, its pages
from Chromium without a window. Needs root, Slurm, tmux, Chromium and Pillow. Look at every picture before a commit.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "flows")]

from broken_job import BrokenJob  # noqa: E402
from PIL import Image  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.terminal_theme import SVG_EXPORT_THEME  # noqa: E402
from rich.text import Text  # noqa: E402
from slurm_kit import HOLDFAST  # noqa: E402
from supervised_job import SupervisedJob  # noqa: E402

from slurm.testbed import TestCluster  # noqa: E402

DEADLINE_S = 120.0
THEMES = {"": 1, "_dark": 0}  # the end of a picture's name -> Chromium's preferredColorScheme
SCREEN = """<meta charset="utf-8"><style>{stylesheet} body {{margin: 0; background: {background}}}
pre {{margin: 0; padding: 10px 12px; font: 13px/18px "DejaVu Sans Mono", monospace; color: {foreground}}}</style>
<pre>{code}</pre>"""
ELASTIC = {
    "min_nodes": 2, "max_nodes": 3, "scaling_timeout_s": 1, "scale_up_snooze_s": 2, "faulty_scale_down_timeout_s": 2,
    "booster": {"partition": "boost"},
}  # fmt: skip


def main(folder: Path) -> None:
    cluster = TestCluster.up(f"pictures-{os.getpid()}", nodes=5)
    try:
        job = troubled_job(cluster)
        for width, height in ((80, 24), (200, 40)):
            text = screen(cluster, ["status", job.job_id, "--watch"], width, height, "next")
            draw_screen(text, width, folder / f"watch_{width}.png")
        draw_screen(screen(cluster, ["top"], 100, 8, "ETTR"), 100, folder / "top.png")
        cluster.run_as_user([*HOLDFAST, "report", job.job_id, "-o", "report.html"])
        draw_page(f"file://{cluster.home}/report.html", folder / "report", 1000, 1505)
        with dashboard(cluster) as address:
            draw_page(address, folder / "dashboard", 1000, 230)
        print(cluster.run_as_user([*HOLDFAST, "status", job.job_id]).stdout)
    finally:
        cluster.down()


def troubled_job(cluster: Any) -> SupervisedJob:
    """A job with three faults and a resize that trains again, after one that has ended and one that waits."""
    ended = BrokenJob(cluster, cluster.home / "baseline", nodes=1, spares=0, workers_per_node=1)
    ended.settle()
    ended.tell("finish")
    ended.watch.wait_for("job_end", DEADLINE_S)
    job = SupervisedJob(
        cluster, cluster.home / "gpt-night", nodes=2, spares=1, workers_per_node=1, elastic=ELASTIC,
        slurm={"partition": "base", "exclusive": True}, args=["--pace-s", "0.15"],
    )  # fmt: skip
    job.watch.until(lambda: len(job.attempt["nodes"]) == 3 or None if job.watch.events("attempt_start") else None,
                    DEADLINE_S, "growth")  # fmt: skip
    trains(job, 20)
    job.recover(lambda: job.signal("KILL", 1))
    trains(job, 12)
    lost = next(rank for rank, node in enumerate(job.attempt["nodes"]) if node != job.term.node)
    job.recover(lambda: cluster.crash_node(job.node_of(lost)))
    trains(job, 12)
    job.recover(lambda: job.signal("STOP", len(job.attempt["nodes"]) - 1))
    trains(job, 25)
    BrokenJob(cluster, cluster.home / "gpt-large", nodes=5, spares=0, workers_per_node=1)
    return job


def trains(job: SupervisedJob, seconds: float) -> None:
    """The job trains for that long, so that the picture has something to show."""
    job.settle()
    end_s = time.time() + seconds
    job.watch.until(lambda: time.time() > end_s or None, seconds + 10, "")


def screen(cluster: Any, words: list[str], width: int, height: int, shows: str) -> str:
    """What a command of holdfast has on a terminal of that size, once it shows these words."""
    tmux = ["tmux", "-L", f"holdfast-{os.getpid()}", "-f", "/dev/null"]
    command = cluster.as_user([*HOLDFAST, *words])
    environment = {**cluster.env, "TERM": "screen-256color"}
    subprocess.run(
        [*tmux, "new-session", "-d", "-x", str(width), "-y", str(height), *command],
        env=environment, cwd=cluster.home, check=True,
    )  # fmt: skip
    try:
        deadline_s = time.monotonic() + DEADLINE_S
        for _ in range(2):  # and drawn once more: the speed comes from the second look
            before = text = ""
            while shows not in text or text == before:
                assert time.monotonic() < deadline_s, text
                time.sleep(1.0)
                before, text = (
                    text,
                    subprocess.run(
                        [*tmux, "capture-pane", "-e", "-p"], capture_output=True, text=True, check=True
                    ).stdout,
                )
        return text
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)


def draw_screen(text: str, width: int, path: Path) -> None:
    lines = text.rstrip().splitlines()
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in lines:
        console.print(Text.from_ansi(line), no_wrap=True, crop=True)
    page = console.export_html(theme=SVG_EXPORT_THEME, code_format=SCREEN)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "screen.html").write_text(page)
        shoot(f"file://{folder}/screen.html", path, round(width * 7.83) + 24, len(lines) * 18 + 20, 0)


def draw_page(address: str, path: Path, width: int, height: int) -> None:
    for end, scheme in THEMES.items():
        shoot(address, path.with_name(f"{path.name}{end}.png"), width, height, scheme)


def shoot(address: str, path: Path, width: int, height: int, scheme: int) -> None:
    """Chromium paints less than the window, so the window is higher than the picture."""
    with tempfile.TemporaryDirectory() as profile:
        drawn = Path(profile) / "drawn.png"
        subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--user-data-dir={profile}", f"--blink-settings=preferredColorScheme={scheme}",
             f"--window-size={width},{height + 200}", f"--screenshot={drawn}", address],
            check=True, capture_output=True, timeout=DEADLINE_S,
        )  # fmt: skip
        with Image.open(drawn) as picture:
            picture.crop((0, 0, width, height)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
                path, optimize=True
            )


@contextlib.contextmanager
def dashboard(cluster: Any) -> Iterator[str]:
    """The address of a dashboard of the cluster's user."""
    with subprocess.Popen(
        cluster.as_user([*HOLDFAST, "dashboard"]), env=cluster.env, cwd=cluster.home, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


if __name__ == "__main__":
    main(Path(sys.argv[1] if sys.argv[1:] else ROOT / "docs" / "guide").resolve())
