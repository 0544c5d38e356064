"""Logging in to the page: who gets a session, how long it lasts, and what guessing costs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fixtures.page_site import Clock, Site

from sparsyedge.coordinator.authority.page_access import make_page_token
from sparsyedge.coordinator.web.login import MAX_ADDRESSES, SESSION_S, Attempts


def test_a_wrong_token_is_refused_and_the_right_one_opens_the_page(guarded_site: Site) -> None:
    assert guarded_site.log_in("wrong") == (401, "this is not the fleet's token for the page")
    assert guarded_site.client.get("/api/me").status_code == 401
    assert guarded_site.log_in()[0] == 200
    assert guarded_site.client.get("/").status_code == 200
    assert guarded_site.client.get("/api/me").json()["wrong_tokens"] == 1


def test_the_cookie_is_for_this_host_over_tls_and_no_script(guarded_site: Site) -> None:
    answer = guarded_site.client.post(
        "/login", json={"token": guarded_site.token}, headers={"origin": guarded_site.origin}
    )
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-sparsyedge=")
    for attribute in ("HttpOnly", "Secure", "SameSite=strict", "Path=/", "Max-Age=43200"):
        assert attribute in cookie


def test_a_thousand_wrong_tokens_are_counted_and_slowed_down(guarded_site: Site) -> None:
    answers = [guarded_site.log_in(f"guess-{number}")[0] for number in range(1000)]
    assert answers.count(401) == 4  # looked at; the others came too early
    assert answers.count(429) == 996
    status, sentence = guarded_site.log_in()
    assert (status, sentence) == (429, "too many wrong tokens from your address; try again in 1 s")
    guarded_site.clock.now_s += 2.0
    assert guarded_site.log_in()[0] == 200
    assert guarded_site.client.get("/api/me").json()["wrong_tokens"] == 1001


def test_guessing_gets_slower_and_slower_up_to_minutes() -> None:
    clock = Clock()
    attempts, waits = Attempts(clock), []
    for _ in range(16):
        attempts.note_wrong("192.168.7.7")
        waits.append(attempts.wait_s("192.168.7.7"))
        clock.now_s += waits[-1]
    assert waits[:6] == [0, 0, 0, 1, 2, 4]
    assert waits[-1] == 300


def test_one_who_guesses_does_not_slow_down_another_address(page_site: Callable[..., Site]) -> None:
    site = page_site(login=True, address="192.168.7.8")
    for _ in range(50):
        site.page.login.attempts.note_wrong("192.168.7.9")
    assert site.page.login.attempts.wait_s("192.168.7.9") > 0
    assert site.log_in()[0] == 200


def test_addresses_beyond_the_table_share_one_record() -> None:
    attempts = Attempts(Clock())
    for index in range(MAX_ADDRESSES + 500):
        attempts.note_wrong(f"10.0.{index // 256}.{index % 256}")
    assert len(attempts._records) == MAX_ADDRESSES
    assert attempts.wait_s("10.99.0.1") > 0
    assert attempts.wrong_in_all == MAX_ADDRESSES + 500


def test_a_host_cannot_guess_from_all_addresses_of_its_network() -> None:
    attempts = Attempts(Clock())
    for index in range(10):
        attempts.note_wrong(f"2001:db8::{index}")
    assert attempts.wait_s("2001:db8::ffff") > 0
    assert attempts.wait_s("2001:db8:1::1") == 0


def test_a_session_ends_after_twelve_hours(guarded_site: Site) -> None:
    guarded_site.log_in()
    guarded_site.clock.now_s += SESSION_S - 1
    assert guarded_site.client.get("/api/me").status_code == 200
    guarded_site.clock.now_s += 2
    assert guarded_site.client.get("/api/me").status_code == 401


def test_a_new_token_ends_all_sessions_and_voids_the_old_one(guarded_site: Site) -> None:
    guarded_site.log_in()
    fresh = make_page_token(guarded_site.folder)
    assert guarded_site.client.get("/api/me").status_code == 401
    assert guarded_site.log_in()[0] == 401
    assert guarded_site.log_in(fresh)[0] == 200


def test_without_a_token_on_record_nobody_gets_in(guarded_site: Site) -> None:
    (guarded_site.folder / "page-token.sha256").write_text("")
    assert guarded_site.log_in("")[0] == 401
    assert guarded_site.log_in()[0] == 401


def test_logging_out_ends_the_session_on_the_server(guarded_site: Site) -> None:
    guarded_site.log_in()
    cookies = dict(guarded_site.client.cookies)
    assert guarded_site.post("/logout", x_csrf_token="wrong")[0] == 403
    assert guarded_site.post("/logout", x_csrf_token=guarded_site.csrf())[0] == 200
    guarded_site.client.cookies.update(cookies)
    assert guarded_site.client.get("/api/me").status_code == 401


@pytest.mark.parametrize("body", [[], {"token": 5}, {"token": "x", "more": 1}, "x", {"token": None}])
def test_a_login_of_another_shape_is_refused(guarded_site: Site, body: object) -> None:
    assert guarded_site.post("/login", body)[0] == 400


def test_a_form_of_another_site_cannot_log_in(guarded_site: Site) -> None:
    headers = {"origin": guarded_site.origin}
    answer = guarded_site.client.post("/login", data={"token": guarded_site.token}, headers=headers)
    assert answer.status_code == 415


def test_prometheus_sends_the_token_itself_and_wrong_ones_count(guarded_site: Site) -> None:
    def scrape(token: str) -> int:
        return guarded_site.client.get("/metrics", headers={"authorization": f"Bearer {token}"}).status_code

    assert scrape("wrong") == 401
    assert scrape(guarded_site.token) in (200, 404)
    assert guarded_site.page.login.attempts.wrong_in_all == 1
