"""The server of a run that is training, over real sockets, and the commands as a user types them."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fspo.report.report_run import ReportRun, load
from fspo.report.watch import LivePage, Server, open_server
from fspo.runs import Metrics, RunWriter
from helpers.htmlpage import check_policy, serving
from helpers.processes import COMMAND, Command
from helpers.synthetic import make_run

Served = tuple[Path, Server]


def first(pattern: str, text: str) -> str:
    """The first group of the first match."""
    match = re.search(pattern, text)
    assert match is not None
    return match.group(1)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    folder = tmp_path / "run"
    folder.mkdir()
    with serving(folder) as server:
        yield folder, server


def get(server: Server, path: str = "/", **headers: str) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    connection.putrequest("GET", path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def test_a_folder_just_made_is_served_and_follows(served: Served) -> None:
    folder, server = served
    answer, page = get(server)
    assert answer.status == 200
    assert "metrics.jsonl is missing" in page
    version = first('data-live="&#34;(.*)&#34;"', page)
    assert get(server, "/main", If_None_Match=f'"{version}"')[0].status == 304
    RunWriter(folder / "fspo").append(Metrics(step=7, reward=0.25))  # as a TRL script does, after the page was opened
    server.source._due = 0.0  # as if enough time had gone by
    answer, main = get(server, "/main", If_None_Match=f'"{version}"')
    assert answer.status == 200
    assert answer.headers["ETag"] != f'"{version}"'
    assert 'id="overview"' in main
    assert "<html" not in main


def test_only_this_machine_under_its_own_name(served: Served) -> None:
    _, server = served
    assert server.server_address[0] == "127.0.0.1"
    port = server.server_port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
        assert get(server, Host=host)[0].status == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", ""):
        answer, text = get(server, "/main", Host=host)
        assert answer.status == 403
        assert "section" not in text


def test_nothing_but_the_page(served: Served) -> None:
    folder, server = served
    (folder / "config.yaml").write_text("secret: 1\n")
    for path in ("/config.yaml", "/../run/config.yaml", "/%2e%2e/config.yaml", "/main/"):
        assert get(server, path)[0].status == 404
    answer, page = get(server)
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    check_policy(page)
    assert first('Security-Policy" content="([^"]*)"', page).endswith("connect-src 'self'")


def test_connections_that_ask_nothing_do_not_starve_the_page(served: Served) -> None:
    idle = [socket.create_connection(("127.0.0.1", served[1].server_port)) for _ in range(4)]
    assert get(served[1])[0].status == 200
    for connection in idle:
        connection.close()


def test_a_port_in_use_is_said(served: Served) -> None:
    _, server = served
    with pytest.raises(ValueError, match=f"port {server.server_port} cannot be used"):
        open_server(Path(), server.server_port)


def test_the_command_ends_cleanly(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "watch", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    port = int(first(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline()))
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0
    assert out.strip() == "stopped"
    assert err == ""


def test_report_of_two_runs_and_the_explorer(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "a", steps=3)
    make_run(tmp_path / "b", steps=3, rule="gspo")
    monkeypatch.chdir(tmp_path)
    assert command("report", "a", "b").stdout == "report: compare.html\n"
    assert command("report", "a").stdout == "report: a/report.html\n"
    assert command("explore", "--out", "pages/explore.html").stdout == "explorer: pages/explore.html\n"
    opened: list[str] = []
    monkeypatch.setattr("typer.launch", opened.append)
    command("explore")
    assert opened[0].startswith("file://")
    assert not (tmp_path / "explore.html").exists()  # nothing is written where the user did not ask for it
    wrong = command("watch", "nowhere", check=False)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: nowhere is not a folder")


def test_the_run_is_read_again_only_after_nine_times_as_long_as_reading_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, reads = 100.0, []

    def slow(folder: Path) -> ReportRun:
        nonlocal now
        now += 2.0
        reads.append(now)
        return load(folder)

    monkeypatch.setattr("fspo.report.watch.time.monotonic", lambda: now)
    monkeypatch.setattr("fspo.report.watch.load", slow)
    page = LivePage(tmp_path)
    for step in range(1, 25):  # a second each; the run writes in all of them
        RunWriter(tmp_path).append(Metrics(step=step))
        page.main()
        now += 1.0
    assert [round(at - 102) for at in reads] == [0, 20]
