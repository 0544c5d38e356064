"""The page's gate: which requests it turns away, and what it tells browsers."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.page_site import Site

from sparsyedge.coordinator.record.store import Store
from sparsyedge.coordinator.web.app import STATIC

PRIVATE = ["/api/me", "/api/events", "/api/devices/pi-000", "/api/layers", "/files/model.onnx", "/metrics"]


def test_on_loopback_the_page_is_open(open_site: Site) -> None:
    assert open_site.client.get("/").status_code == 200
    assert open_site.client.get("/api/layers").status_code == 200
    assert not open_site.client.get("/api/me").json()["login"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8640", "127.0.0.1@evil.example", "", "localhost/x"])
def test_another_name_for_this_machine_is_not_answered(open_site: Site, host: str) -> None:
    answer = open_site.client.get("/api/me", headers={"host": host})
    assert answer.status_code == 421
    assert "csrf" not in answer.text


@pytest.mark.parametrize("host", ["localhost:8640", "127.0.0.1:8640", "[::1]:8640", "LOCALHOST", "page.lab."])
def test_its_own_names_are_answered_in_any_spelling(open_site: Site, host: str) -> None:
    assert open_site.client.get("/api/me", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers", [{"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}]
)
def test_a_script_of_another_site_gets_nothing(open_site: Site, headers: dict[str, str]) -> None:
    answer = open_site.client.get("/api/me", headers=headers)
    assert answer.status_code == 403
    assert "csrf" not in answer.text


@pytest.mark.parametrize("origin", [None, "null", "http://localhost:3000", "https://127.0.0.1:8640"])
def test_an_action_needs_the_pages_own_origin(open_site: Site, origin: str | None) -> None:
    headers = {"x-csrf-token": open_site.csrf(), **({} if origin is None else {"origin": origin})}
    assert open_site.client.post("/api/actions/stop", json={}, headers=headers).status_code == 403
    with closing(Store.open(open_site.run_dir)) as store:
        assert not store.stop_requested()


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"])
def test_no_other_method_is_known(open_site: Site, method: str) -> None:
    assert open_site.client.request(method, "/api/me").status_code == 405


@pytest.mark.parametrize("path", ["/", "/login", "/api/me", "/static/main.js", "/absent", "/files/model.onnx"])
def test_every_answer_carries_the_strict_headers(open_site: Site, path: str) -> None:
    headers = open_site.client.get(path).headers
    policy = headers["content-security-policy"]
    for rule in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"):
        assert rule in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == ("no-cache" if path.startswith("/static") else "no-store")
    assert "server" not in headers


@pytest.mark.parametrize("path", PRIVATE)
def test_nothing_private_is_told_without_a_login(guarded_site: Site, path: str) -> None:
    answer = guarded_site.client.get(path)
    assert answer.status_code == 401
    assert "digits" not in answer.text


def test_a_stranger_is_led_to_the_login(guarded_site: Site) -> None:
    answer = guarded_site.client.get("/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert "Token" in guarded_site.client.get("/login").text


def test_a_body_that_is_too_large_is_refused_unread(open_site: Site) -> None:
    status, sentence = open_site.post("/api/actions/stop", {"device": "x" * 5000}, x_csrf_token=open_site.csrf())
    assert status == 413
    assert "at most 4096 bytes" in sentence


@pytest.mark.parametrize(
    "path",
    [
        "/files/run.sqlite",
        "/files/coordinator.log",
        "/files/..%2frun%2frun.sqlite",
        "/files/%2e%2e/other/model.onnx",
        "/files/../../etc/passwd",
        "/files/model.onnx%00",
        "/static/..%2fapp.py",
        "/static/%2e%2e/%2e%2e/app.py",
        "/static//etc/passwd",
        "/static/",
        "/static/uplot",
    ],
)
def test_files_of_others_are_not_found(open_site: Site, path: str) -> None:
    other = open_site.run_dir.parent / "other"
    other.mkdir()
    (other / "model.onnx").write_bytes(b"secret")
    (open_site.run_dir / "model.onnx").write_bytes(b"model")
    answer = open_site.client.get(path)
    assert answer.status_code == 404
    assert "secret" not in answer.text


def test_a_link_to_another_runs_model_is_not_followed(open_site: Site, tmp_path: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(b"secret")
    (open_site.run_dir / "model.onnx").symlink_to(tmp_path / "other.onnx")
    assert open_site.client.get("/files/model.onnx").status_code == 404


def test_the_model_is_downloaded_as_a_file(open_site: Site) -> None:
    (open_site.run_dir / "model.onnx").write_bytes(b"model")
    answer = open_site.client.get("/files/model.onnx")
    assert answer.content == b"model"
    assert answer.headers["content-disposition"] == 'attachment; filename="model.onnx"'


def test_the_pages_own_files_are_small_and_ask_nobody_else() -> None:
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 150_000
    assert (STATIC / "uplot" / "LICENSE").is_file()
    for path in files:
        if path.parent == STATIC and path.suffix in (".html", ".js", ".css"):
            text = path.read_text()
            assert not re.search(r"https?://", text), path
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\bon\w+=|style=", text), path
