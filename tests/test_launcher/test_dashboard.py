"""The dashboard answers its owner's browser, and nobody else."""

from __future__ import annotations

import http.client
import json
import re
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from history_kit import START, WHOLE, event, job_folder

from launcher.cli import main
from launcher.errors import LauncherError
from launcher.job.registry import find_job
from launcher.screen.dashboard import Dashboard


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@contextmanager
def serving(*folders: Path, socket_path: Path | None = None) -> Iterator[Dashboard]:
    with Dashboard(socket_path=socket_path, jobs=lambda: [find_job(str(folder)) for folder in folders]) as dashboard:
        thread = threading.Thread(target=dashboard.serve)
        thread.start()
        try:
            yield dashboard
        finally:
            dashboard.stop()
            thread.join()


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Dashboard]:
    job_folder(tmp_path / "7", START, name="<b>gpt")
    with serving(tmp_path / "7") as served:
        yield served


def parts(dashboard: Dashboard) -> tuple[int, str]:
    found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)(/[\w-]{32}/)", dashboard.address)
    assert found
    return int(found[1]), found[2]


def ask(dashboard: Dashboard, path: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    """The status, body and headers of an answer."""
    port, _ = parts(dashboard)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def test_the_list_leads_to_each_job_whose_page_is_the_report(dashboard: Dashboard) -> None:
    _, root = parts(dashboard)
    code, listing, _ = ask(dashboard, root)
    (link,) = re.findall(r'href="(job/\w+)"', listing)
    assert code == 200 and "&lt;b&gt;gpt" in listing and "<b>gpt" not in listing
    code, page, headers = ask(dashboard, root + link)
    assert code == 200 and "Where the time went" in page and 'href="../"' in page
    (nonce,) = set(re.findall(r'nonce="([\w-]+)"', page))
    assert f"script-src 'nonce-{nonce}'" in headers["content-security-policy"]
    assert ask(dashboard, root + link, "HEAD")[:2] == (200, "")


def test_a_page_shows_what_the_job_has_done_since(dashboard: Dashboard, tmp_path: Path) -> None:
    _, root = parts(dashboard)
    link = re.findall(r'href="(job/\w+)"', ask(dashboard, root)[1])[0]
    assert "silent-node" not in ask(dashboard, root + link)[1]
    with (tmp_path / "7" / "events.jsonl").open("a") as file:
        file.write(json.dumps(event(31, "fault", attempt=0, kind="node_lost", node="silent-node", step=20)) + "\n")
    assert "silent-node" in ask(dashboard, root + link)[1]


def test_a_run_that_begins_in_an_emptied_folder_replaces_the_one_before(tmp_path: Path) -> None:
    folder = job_folder(tmp_path / "7", WHOLE)
    with serving(folder) as dashboard:
        _, root = parts(dashboard)
        assert "done" in ask(dashboard, root)[1]
        (folder / "events.jsonl").write_text(json.dumps(START[0]) + "\n")
        assert "starting" in ask(dashboard, root)[1]


def test_events_of_a_supervisor_that_was_taken_over_do_not_count(tmp_path: Path) -> None:
    folder = job_folder(tmp_path / "7", [{**each, "term": 2} for each in START])
    late = event(31, "job_end", outcome="internal", step=1) | {"term": 1}
    with serving(folder) as dashboard:
        _, root = parts(dashboard)
        ask(dashboard, root)
        with (folder / "events.jsonl").open("a") as file:
            file.write(json.dumps(late) + "\n")
        assert "training" in ask(dashboard, root)[1]


def test_without_the_secret_there_is_nothing(dashboard: Dashboard) -> None:
    _, root = parts(dashboard)
    link = re.findall(r'href="(job/\w+)"', ask(dashboard, root)[1])[0]
    wrong = f"/{'x' * 32}/"
    for path in ("/", "", "/favicon.ico", wrong, wrong + link, root[:-2] + "/", root[1:], f"/x{root}", "/%c3%a9/", "*"):
        assert ask(dashboard, path)[:2] == (404, "not found\n"), path


def test_only_pages_that_exist_are_found(dashboard: Dashboard) -> None:
    _, root = parts(dashboard)
    for path in ("job/", "job/0", "job/../../7", "../7/secret", "job/%2e%2e", "job", "x"):
        assert ask(dashboard, root + path)[0] == 404


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost@evil", "0"]
)
def test_a_name_of_another_site_that_resolves_to_this_machine_gets_nothing(dashboard: Dashboard, host: str) -> None:
    _, root = parts(dashboard)
    assert ask(dashboard, root, Host=host)[0] == 404


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1:1", "LOCALHOST", "[::1]:80"])
def test_the_port_of_a_tunnel_is_no_other_site(dashboard: Dashboard, host: str) -> None:
    _, root = parts(dashboard)
    assert ask(dashboard, root, Host=host)[0] == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", "x"])
def test_a_page_of_another_site_or_port_gets_nothing(dashboard: Dashboard, site: str) -> None:
    _, root = parts(dashboard)
    assert ask(dashboard, root, Sec_Fetch_Site=site)[0] == 404
    assert ask(dashboard, root, Sec_Fetch_Site="same-origin")[0] == 200


def test_no_answer_may_be_read_framed_or_kept_elsewhere(dashboard: Dashboard) -> None:
    _, root = parts(dashboard)
    for path in (root, "/"):
        headers = ask(dashboard, path, Origin="https://evil.example")[2]
        assert not [name for name in headers if name.startswith("access-control")]
        assert headers["x-frame-options"] == "DENY" and headers["cache-control"] == "no-store"
        assert headers["cross-origin-resource-policy"] == "same-origin" and headers["referrer-policy"] == "no-referrer"
        assert "default-src 'none'" in headers["content-security-policy"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE"])
def test_nothing_can_be_changed_through_it(dashboard: Dashboard, method: str) -> None:
    _, root = parts(dashboard)
    assert ask(dashboard, root, method)[0] == 501


def test_it_listens_on_the_loopback_address_only(dashboard: Dashboard) -> None:
    port, _ = parts(dashboard)
    with socket.socket() as other, pytest.raises(OSError):
        other.settimeout(5)
        other.connect((socket.gethostbyname(socket.gethostname()), port))
        if other.getpeername()[0].startswith("127."):
            raise OSError("this machine's name is a loopback address, so there is no other one to try")


def test_a_folder_that_cannot_be_read_does_not_hide_the_other_jobs(tmp_path: Path) -> None:
    job_folder(tmp_path / "7", START)
    job_folder(tmp_path / "8", START)
    (tmp_path / "8" / "events.jsonl").unlink()
    (tmp_path / "8" / "events.jsonl").mkdir()
    with serving(tmp_path / "7", tmp_path / "8") as dashboard:
        _, root = parts(dashboard)
        _, listing, _ = ask(dashboard, root)
        assert "unreadable" in listing and "training" in listing
        codes = [ask(dashboard, root + link)[0] for link in re.findall(r'href="(job/\w+)"', listing)]
        assert sorted(codes) == [200, 503]


def test_a_unix_socket_is_its_owners_and_serves_the_same(tmp_path: Path) -> None:
    job_folder(tmp_path / "7", START)
    path = tmp_path / "sock"
    with serving(tmp_path / "7", socket_path=path) as dashboard:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        root = re.search(r"http://localhost(/[\w-]+/)", dashboard.address)
        assert root
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(f"GET {root[1]} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            answer = b"".join(iter(lambda: client.recv(65536), b"")).decode()
        assert answer.startswith("HTTP/1.0 200") and "training" in answer
        with pytest.raises(LauncherError, match="cannot be used"):
            Dashboard(socket_path=path)
    assert not path.exists()


def test_a_socket_that_a_killed_dashboard_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with serving(socket_path=path):
        assert path.is_socket()


def test_a_port_that_is_taken_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["dashboard", "--port", str(port)]) == 1
    assert f"port {port} cannot be used" in capsys.readouterr().err
