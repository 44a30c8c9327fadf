"""The server of a run that is training, over real sockets, and the commands as a user types them."""

from __future__ import annotations

import http.client
import os
import re
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from fspo.report.watch import MOST_CONNECTIONS, Handler, Server, open_server
from fspo.runs import Metrics, RunWriter
from helpers.htmlpage import check_policy
from helpers.processes import COMMAND, Command
from helpers.synthetic import make_run

Served = tuple[Path, Server]


def found(pattern: str, text: str) -> str:
    """The first group of the first match."""
    match = re.search(pattern, text)
    assert match is not None
    return match.group(1)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    folder = tmp_path / "run"
    folder.mkdir()
    with open_server(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield folder, server
        server.shutdown()
        thread.join(5)
        assert not thread.is_alive()


def get(server: Server, path: str = "/", **headers: str) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
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
    version = found('data-live="&#34;(.*)&#34;"', page)
    assert get(server, "/main", If_None_Match=f'"{version}"')[0].status == 304
    RunWriter(folder).append(Metrics(step=7, reward=0.25))
    deadline = time.monotonic() + 20
    answer, main = get(server, "/main", If_None_Match=f'"{version}"')
    while answer.status == 304:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        answer, main = get(server, "/main", If_None_Match=f'"{version}"')
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
    assert found('Security-Policy" content="([^"]*)"', page).endswith("connect-src 'self'")


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
    port = int(found(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline()))
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert out.strip() == "stopped"
    assert err == ""


def test_report_of_two_runs_with_images_and_the_explorer(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "a", steps=3)
    make_run(tmp_path / "b", steps=3, rule="gspo")
    monkeypatch.chdir(tmp_path)
    images = command("report", "a", "b", "--svg", "figures", "--png", "figures")
    assert images.stdout.splitlines()[0] == "report: compare.html"
    assert "<svg" in (tmp_path / "compare.html").read_text(encoding="utf-8")
    kinds = [p.suffix for p in (tmp_path / "figures").iterdir()]
    assert kinds.count(".svg") == kinds.count(".png") > 19
    assert command("report", "a").stdout == "report: a/report.html\n"
    assert command("explore", "--out", "pages/explore.html").stdout == "explorer: pages/explore.html\n"
    assert "fspo report runs/fspo runs/gspo" in command("report", "--help").stdout
    wrong = command("watch", "nowhere", check=False)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: nowhere is not a folder")
    wrong = command("report", "pages", check=False)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: pages is not a run folder")


def test_idle_connections_are_closed_and_their_number_is_limited(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, server = served
    monkeypatch.setattr(Handler, "timeout", 0.5)
    idle = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(MOST_CONNECTIONS + 8)]
    time.sleep(0.3)
    closed = 0
    for connection in idle:
        connection.settimeout(5)
        began = time.monotonic()
        assert connection.recv(1) == b""  # the server hung up: at once beyond the limit, after the time-out within it
        closed += time.monotonic() - began < 5
        connection.close()
    assert closed == len(idle)
    with closing(http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)) as connection_again:
        connection_again.request("GET", "/")
        assert connection_again.getresponse().status == 200


def test_a_request_that_trickles_in_is_closed_in_the_same_time(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    _, server = served
    monkeypatch.setattr(Handler, "timeout", 0.5)
    with socket.create_connection(("127.0.0.1", server.server_port)) as slow:
        slow.settimeout(5)
        began = time.monotonic()
        with suppress(ConnectionError):
            while time.monotonic() - began < 5:
                slow.sendall(b"G")
                time.sleep(0.1)
                if select.select([slow], [], [], 0)[0]:
                    break
        assert time.monotonic() - began < 3
