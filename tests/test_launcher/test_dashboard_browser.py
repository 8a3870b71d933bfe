"""The pages in a real browser: they are shown, keep themselves up to date, and are closed to pages of other sites."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from history_kit import START, WHOLE, job_folder

from launcher.cli import main
from launcher.job.registry import KnownJob, find_job
from launcher.screen.dashboard import Dashboard

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def seen(address: str, tmp_path: Path, seconds: int = 10) -> tuple[str, str]:
    """The page as it is after so many seconds of its own time, and what the browser complains of."""
    done = subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
         f"--user-data-dir={tmp_path / 'profile'}", f"--virtual-time-budget={1000 * seconds}", "--dump-dom", address],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


class Growing:
    """The jobs of a dashboard: one, which ends when it is asked for the second time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._asked = 0

    def __call__(self) -> list[KnownJob]:
        self._asked += 1
        if self._asked == 2:
            with (self._folder / "events.jsonl").open("a") as file:
                file.writelines(json.dumps(each) + "\n" for each in WHOLE[len(START) :])
        return [find_job(str(self._folder))]


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Dashboard]:
    with Dashboard(jobs=Growing(job_folder(tmp_path / "7", START))) as served:
        thread = threading.Thread(target=served.serve)
        thread.start()
        yield served
        served.stop()
        thread.join()


def test_a_page_brings_itself_up_to_date(dashboard: Dashboard, tmp_path: Path) -> None:
    page, complaints = seen(dashboard.address, tmp_path)
    assert '<td class="short good">done</td>' in page, page
    assert 'id="live">live<' in page and complaints == "", complaints


def test_a_page_of_another_origin_sees_nothing(dashboard: Dashboard, tmp_path: Path) -> None:
    """It knows the whole address, and tries to read it, to run it and to frame it."""
    spy = f"""<body><script>
const tell = (text) => document.body.append(text + ";");
const address = {dashboard.address!r};
fetch(address).then((answer) => answer.text()).then((text) => tell("read " + text), () => tell("no fetch"));
fetch(address, {{mode: "no-cors"}}).then((answer) => answer.text()).then(tell, () => tell("no answer"));
const frame = document.createElement("iframe");
frame.onload = () => {{
  try {{ tell("frame " + frame.contentDocument.body.textContent); }} catch (error) {{ tell("no frame"); }}
}};
frame.src = address;
document.body.append(frame);
</script>"""

    class _Spy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(spy.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), _Spy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page, _ = seen(f"http://127.0.0.1:{server.server_port}/", tmp_path)
        server.shutdown()
    told = page.rpartition("</script>")[2]
    assert "no fetch;" in told and "no frame;" in told, told
    assert "gpt" not in told and "Jobs" not in told, told


def test_a_report_is_shown_without_a_complaint(tmp_path: Path) -> None:
    assert main(["report", str(job_folder(tmp_path / "7", WHOLE)), "-o", "out.html"]) == 0
    page, complaints = seen(f"file://{tmp_path / 'out.html'}", tmp_path)
    assert "Where the time went" in page and complaints == "", complaints
