"""The page of `condenset serve`: what it answers, and what it refuses."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from condenset.report.server import RunServer, is_local_host
from helpers.run_directories import write_run
from helpers.run_server import serve_runs

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunServer]:
    with serve_runs(tmp_path / "runs") as server:
        yield server


class Answer:
    """The answer to a request."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.text = response.status, response.headers, response.read().decode()

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def send(server: RunServer, path: str, method: str = "GET", **headers: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request(method, path, headers=headers)
    answer = Answer(connection.getresponse())
    connection.close()
    return answer


def test_list_of_runs(server: RunServer) -> None:
    assert send(server, "/api/runs").json == {"runs": []}
    write_run(server.directory / "a")
    write_run(server.directory / "b", state="running", job="dm-10", step=1, total=4, remaining_seconds=9.0)
    active, finished = send(server, "/api/runs").json["runs"]
    assert (active["name"], active["state"], active["share"], active["remaining_seconds"]) == ("b", "running", 0.25, 9)
    assert (finished["dataset"], finished["methods"], finished["share"]) == ("digits", ["random", "dm"], None)
    assert finished["accuracies"] == [["dm-10", 0.5]] and not finished["has_report"]


def test_page_and_its_files(server: RunServer) -> None:
    page = send(server, "/")
    assert page.status == 200 and f"Runs in {server.directory}" in page.text
    assert "default-src 'none'" in page.headers["Content-Security-Policy"] and "unsafe" not in str(page.headers)
    for path, kind in (("/report.css", "text/css"), ("/runs.css", "text/css"), ("/runs.js", "text/javascript")):
        assert path in page.text
        assert send(server, path).headers["Content-Type"].startswith(kind)


def test_names_are_escaped(tmp_path: Path) -> None:
    with serve_runs(tmp_path / SCRIPT.replace("/", "")) as server:
        assert "<script>alert" not in send(server, "/").text


def test_reports_are_served_and_isolated(server: RunServer) -> None:
    directory = write_run(server.directory / "group" / "a b")
    path = "/runs/group%2Fa%20b/report.html"
    assert send(server, path).status == 404
    (directory / "report.html").write_text("<p>report</p>")
    answer = send(server, path)
    assert (answer.status, answer.text) == (200, "<p>report</p>")
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    assert "allow-same-origin" not in answer.headers["Content-Security-Policy"]


def test_only_known_files_are_served(server: RunServer, tmp_path: Path) -> None:
    (tmp_path / "secret.html").write_text("secret")
    write_run(tmp_path / "outside")
    (tmp_path / "outside" / "report.html").write_text("secret")
    run = write_run(server.directory / "a")
    (run / "report.html").symlink_to(tmp_path / "secret.html")
    paths = ["/runs/a/recipe.toml", "/runs/a/report.html", "/runs/..%2Foutside/report.html", "/../secret.html"]
    paths += ["/runs/../../secret.html", "/runs/%2e%2e%2Foutside/report.html", "/templates/runs.html", "/runs/a"]
    assert [send(server, path).status for path in paths] == [404] * len(paths)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:8000", True),
        ("localhost:8000", True),
        ("[::1]:8000", True),
        ("192.168.0.7", True),
        ("evil.example:8000", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("", False),
        ("[", False),
        ("ü:8000", False),
    ],
)
def test_hosts(host: str, expected: bool) -> None:
    assert is_local_host(host, {"localhost"}) == expected


def test_requests_under_another_name_are_refused(server: RunServer) -> None:
    for method, path in (("GET", "/"), ("GET", "/api/runs"), ("POST", "/runs/a/report.html")):
        assert send(server, path, method, Host="evil.example").status == 403


def test_reports_are_written_on_request_of_the_page(server: RunServer) -> None:
    directory, path = write_run(server.directory / "a"), "/runs/a/report.html"
    secret = {"X-Condenset-Secret": server.secret}
    assert f'content="{server.secret}"' in send(server, "/").text
    assert send(server, path, "POST").status == 403
    assert send(server, path, "POST", **{"X-Condenset-Secret": "guess"}).status == 403
    assert not (directory / "report.html").exists()  # neither has a GET changed anything
    assert send(server, path, "POST", **secret).status == 200
    assert send(server, "/api/runs").json["runs"][0]["has_report"]
    write_run(server.directory / "empty")
    answer = send(server, "/runs/empty/report.html", "POST", **secret)
    assert (answer.status, answer.json) == (400, {"error": "there are no results"})
    assert send(server, "/runs/other/report.html", "POST", **secret).status == 404


@pytest.mark.parametrize("path", ["/", "/runs.js", "/api/runs", "/runs/a/report.html", "/runs/b/report.html", "/x"])
def test_head_has_the_headers_of_get_without_content(server: RunServer, path: str) -> None:
    write_run(server.directory / "a")
    (server.directory / "a" / "report.html").write_text("page")
    full, head = (send(server, path, method) for method in ("GET", "HEAD"))
    assert (head.status, head.text) == (full.status, "")
    for name in ("Content-Type", "Content-Length", "Content-Security-Policy"):
        assert head.headers[name] == full.headers[name]
