"""What the page does to a run."""

from __future__ import annotations

from contextlib import closing

import pytest
from fixtures.page_site import Site

from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.record.store import Store


def act(site: Site, action: str, **body: str) -> tuple[int, str]:
    return site.post(f"/api/actions/{action}", body, x_csrf_token=site.csrf())


def requests(site: Site) -> frozenset[str]:
    with closing(Store.open(site.run_dir)) as store:
        return store.requests()


@pytest.mark.parametrize("csrf", ["", "wrong", "é"])
def test_an_action_without_the_csrf_token_does_nothing(open_site: Site, csrf: str) -> None:
    headers = {b"origin": open_site.origin.encode(), b"x-csrf-token": csrf.encode()}
    answer = open_site.client.post("/api/actions/stop", json={}, headers=headers)
    assert answer.status_code == 403
    assert not requests(open_site)


def test_a_run_is_paused_resumed_and_stopped(open_site: Site) -> None:
    assert act(open_site, "pause")[0] == 200
    assert requests(open_site) == {"pause"}
    assert act(open_site, "resume") == (200, "run digits opens rounds again")
    assert act(open_site, "stop") == (200, "run digits will finish after the round that is open")
    assert requests(open_site) == {"stop"}


def test_a_run_that_is_over_refuses_with_its_reason(open_site: Site) -> None:
    with closing(Store.open(open_site.run_dir)) as store:
        store.end_run("finished")
    status, sentence = act(open_site, "stop")
    assert status == 409
    assert "is finished already" in sentence


def test_an_unknown_action_is_named(open_site: Site) -> None:
    assert act(open_site, "explode") == (
        404,
        "there is no such action; known are pause, resume, stop, release, revoke",
    )


def test_a_device_is_revoked_through_the_authority(guarded_site: Site) -> None:
    authority = Authority.open(guarded_site.folder)
    authority.invite("pi-001")
    with authority.ledger() as ledger:
        assert "pi-001" in ledger.token_hashes()
    guarded_site.log_in()
    assert act(guarded_site, "revoke", device="pi-001")[0] == 200
    with authority.ledger() as ledger:
        assert "pi-001" not in ledger.token_hashes()


def test_revoking_a_stranger_is_refused_with_a_reason(open_site: Site) -> None:
    status, sentence = act(open_site, "revoke", device="../pi-009")
    assert status == 409
    assert "no device '../pi-009'" in sentence
