"""A fleet's authority is replaced: every stage, killed at every write, and what must never count."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fixtures.boards import Board, claim, enrolled, report
from fixtures.nats import make_cluster
from fixtures.secured import make_member

from sparsyedge.coordinator.authority import certificates, rotation
from sparsyedge.coordinator.authority.authority import Authority
from sparsyedge.coordinator.authority.enrolment_service import serving
from sparsyedge.coordinator.authority.followers import Absent, Headcount, issued_by
from sparsyedge.coordinator.authority.page_access import page_certificate
from sparsyedge.coordinator.authority.renewals import Renewals
from sparsyedge.coordinator.backup import make_backup, restore_backup
from sparsyedge.coordinator.commands.coordinator_command import main
from sparsyedge.edge import storage
from sparsyedge.edge.errors import ConfigError, LinkError, SecurityError
from sparsyedge.edge.protocol.messages import encode
from sparsyedge.edge.protocol.mqtt import Link
from sparsyedge.edge.security.enrolment_messages import NotRenewed, RenewalRequest, Renewed
from sparsyedge.edge.security.identity import Identity, make_csr

DAY_S = 86400.0
PATIENT_S = 60.0


def ends_with(authority: Authority, *, is_open: bool) -> None:
    """The files that belong together do, and there is a next authority only while one is followed."""
    folder = authority.folder
    listed = (folder / "ca.pem").read_text().count("BEGIN CERTIFICATE")
    assert (listed, authority.next.exists()) == ((2, True) if is_open else (1, False))
    assert (folder / "crl.pem").read_text().count("BEGIN X509 CRL") == listed
    issuer, _ = authority._pair()
    server = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    key = serialization.load_pem_private_key((folder / "server.key").read_bytes(), password=None)
    assert issued_by(server, issuer)
    assert server.public_key() == key.public_key()
    assert public_of(authority.private_signing_key()) == authority.signing_key
    assert not list(folder.glob("next.part*"))


def public_of(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


@pytest.fixture
def boards(authority: Authority, tmp_path: Path) -> list[Board]:
    return [enrolled(authority, device, tmp_path / device) for device in ("pi-01", "pi-02")]


# ---- the way there and back ------------------------------------------------------------------------------------------


def test_devices_follow_and_one_authority_is_left(authority: Authority, boards: list[Board]) -> None:
    old_key, old_ca = authority.signing_key, authority.certificate()
    state = rotation.begin(authority)
    ends_with(authority, is_open=True)
    assert authority.signing_key == old_key, "every device trusts the present key, and only some the next"
    assert rotation.headcount(authority, state).sentence() == (
        "0 of 2 devices follow the new authority; pi-01 not seen since the rotation began, "
        "pi-02 not seen since the rotation began"
    )
    for board in boards:
        board.follow(authority, state)
        assert set(board.keys.present) == {old_key, (authority.next / "signing.pub").read_text().strip()}
    assert rotation.headcount(authority, state).sentence() == "2 of 2 devices follow the new authority"

    state = rotation.finish(authority)
    assert state.stage == "closed"
    ends_with(authority, is_open=False)
    assert authority.signing_key != old_key
    assert authority.certificate() != old_ca
    for board in boards:
        board.hear(state)
        assert board.keys.present == (authority.signing_key,)
        assert board.identity.is_certified
        assert board.identity.serial
        assert (board.folder / "ca.pem").read_text() == (authority.folder / "ca.pem").read_text()
        board.start()
        assert board.keys.present == (authority.signing_key,)


def test_a_device_that_was_away_follows_when_it_comes_back_before_the_end(
    authority: Authority, boards: list[Board]
) -> None:
    state = rotation.begin(authority)
    boards[0].follow(authority, state)
    with pytest.raises(SecurityError, match=r"1 of 2 devices follow.*pi-02 not seen.*--leave-behind pi-02"):
        rotation.finish(authority)
    ends_with(authority, is_open=True)
    boards[1].start()
    boards[1].follow(authority, state)
    assert rotation.finish(authority).stage == "closed"


def test_a_restart_in_between_loses_nothing(authority: Authority, boards: list[Board]) -> None:
    state, board = rotation.begin(authority), boards[0]
    board.hear(state)
    board.start()
    assert len(board.keys.present) == 2
    board.watch._looked_s = -1e9
    board.live()
    assert board.ask(authority), "it still has to ask for its certificate"
    board.start()
    board.courier.say_hello()
    report(authority, state, "pi-01", board.status)
    assert [absent.device for absent in rotation.headcount(authority, state).missing] == ["pi-02"]


def test_those_left_behind_are_revoked_and_may_enrol_again(authority: Authority, boards: list[Board]) -> None:
    state = rotation.begin(authority)
    boards[0].follow(authority, state)
    with pytest.raises(SecurityError, match="names pi-09, which nobody waits for"):
        rotation.finish(authority, ["pi-02", "pi-09"])
    rotation.finish(authority, ["pi-02"])
    with authority.ledger() as ledger:
        assert ledger.denied() == ["pi-02"]
    again = enrolled(authority, "pi-02", boards[1].folder)
    assert again.keys.present == (authority.signing_key,)
    # What ran before a crash may run again; the new enrolment stays.
    rotation.settle(authority)
    with authority.ledger() as ledger:
        assert ledger.denied() == []


def test_a_file_that_was_made_before_the_end_is_waited_for(authority: Authority, boards: list[Board]) -> None:
    state = rotation.begin(authority)
    for board in boards:
        board.follow(authority, state)
    invited = authority.invite("pi-03")
    assert invited.ca.count("BEGIN") == 1
    assert invited.signing_key == authority.signing_key
    with pytest.raises(SecurityError, match="pi-03 has a token that it has not used"):
        rotation.finish(authority)
    rotation.finish(authority, ["pi-03"])
    with authority.ledger() as ledger:
        assert "pi-03" not in ledger.token_hashes()


def test_a_device_that_enrols_again_follows_again(authority: Authority, boards: list[Board]) -> None:
    state = rotation.begin(authority)
    for board in boards:
        board.follow(authority, state)
    enrolled(authority, "pi-01", boards[0].folder)
    assert [absent.device for absent in rotation.headcount(authority, state).missing] == ["pi-01"]


def test_a_device_that_is_enrolled_again_while_it_runs_needs_no_restart(
    authority: Authority, boards: list[Board]
) -> None:
    board, running = boards[0], boards[0].watch
    rotation.begin(authority)
    rotation.finish(authority, ["pi-01", "pi-02"])
    (board.folder / "device.pem").unlink()
    running._looked_s = -1e9
    running.work()
    make_member(authority, "pi-01", board.folder)
    running._looked_s = -1e9
    running.work()
    assert board.keys.present == (authority.signing_key,)


def test_an_abort_is_over_at_once_if_nobody_has_followed(authority: Authority, boards: list[Board]) -> None:
    key = authority.signing_key
    begun = rotation.begin(authority)
    boards[0].hear(begun)
    state = rotation.abort(authority)
    assert state.stage == "closed"
    ends_with(authority, is_open=False)
    boards[0].hear(state)
    assert boards[0].keys.present == (key,) == (authority.signing_key,)
    with pytest.raises(SecurityError, match="nothing to abort"):
        rotation.abort(authority)


def test_those_who_followed_go_back_before_an_abort_ends(authority: Authority, boards: list[Board]) -> None:
    key, before = authority.signing_key, authority.certificate()
    boards[0].follow(authority, rotation.begin(authority))
    state = rotation.abort(authority)
    assert state.stage == "returning"
    ends_with(authority, is_open=True)
    with pytest.raises(SecurityError, match="1 of 2 devices are back with the present authority; pi-01 last seen"):
        rotation.finish(authority)
    boards[0].follow(authority, state)
    state = rotation.finish(authority)
    ends_with(authority, is_open=False)
    boards[0].hear(state)
    assert boards[0].keys.present == (key,)
    assert authority.certificate() == before
    assert boards[0].identity.is_certified


def test_one_rotation_follows_another(authority: Authority, boards: list[Board]) -> None:
    keys = {authority.signing_key}
    for _ in range(2):
        state = rotation.begin(authority)
        for board in boards:
            board.follow(authority, state)
        state = rotation.finish(authority)
        for board in boards:
            board.hear(state)
        keys.add(authority.signing_key)
    assert len(keys) == 3
    assert all(board.keys.present == (authority.signing_key,) for board in boards)


def test_a_machine_without_the_keys_cannot_rotate(authority: Authority) -> None:
    (authority.folder / "signing.key").unlink()
    with pytest.raises(SecurityError, match=r"has no signing\.key.*the machine that has all keys"):
        rotation.begin(authority)
    assert rotation.read_rotation(authority.folder) is None


# ---- killed at every write -------------------------------------------------------------------------------------------


class Killed(BaseException):
    """What a power failure is in these tests: nothing after it runs."""


def killed_at(monkeypatch: pytest.MonkeyPatch, point: str, number: int, act: Callable[[], object]) -> bool:
    """Run `act` until its `number`th write comes to `point`; returns whether it got that far."""
    left = [number]

    def crash(name: str) -> None:
        if name == point:
            left[0] -= 1
            if left[0] == 0:
                raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(storage, "crash_point", crash)
        try:
            act()
        except Killed:
            return True
    return False


def trusted(board: Board, folder: Path) -> bool:
    """Whether the device trusts whoever signs at this moment."""
    key = serialization.load_pem_private_key((folder / "signing.key").read_bytes(), password=None)
    assert isinstance(key, Ed25519PrivateKey)
    return public_of(key) in board.identity.signing_keys


STAGES: dict[str, Callable[[Authority], object]] = {
    "begin": rotation.begin,
    "finish": rotation.finish,
    "abort": rotation.abort,
}


@pytest.mark.heavy
@pytest.mark.parametrize("point", ["before-rename", "after-rename"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_kill_at_any_write_is_made_good_by_the_same_command(
    stage: str, point: str, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = enrolled(authority, "pi-01", tmp_path / "pi-01")
    if stage != "begin":
        board.follow(authority, rotation.begin(authority))
    for number in range(1, 100):
        scene = tmp_path / f"scene-{number}"
        shutil.copytree(authority.folder, scene)
        crashed = killed_at(monkeypatch, point, number, partial(STAGES[stage], Authority.open(scene)))
        assert trusted(board, scene), f"nobody could lead the fleet after write {number}"
        again = Authority.open(scene)
        state = rotation.settle(again)
        if stage == "begin":
            state = rotation.begin(again)
        elif state is not None and state.stage == "following":
            # The stage had not begun: the command is given again.
            STAGES[stage](again)
        state = rotation.read_rotation(scene)
        assert state is not None
        assert state.stage == {"begin": "following", "finish": "closed", "abort": "returning"}[stage]
        ends_with(again, is_open=state.is_open)
        shutil.copytree(board.folder, tmp_path / f"device-{number}")
        copy = Board("pi-01", tmp_path / f"device-{number}")
        copy.hear(state)
        assert trusted(copy, scene)
        assert copy.identity.record.number == state.number
        if not crashed:
            assert number > 5
            return
    pytest.fail("the stage writes without end")


def test_a_backup_in_the_middle_goes_on_where_it_was(authority: Authority, boards: list[Board], tmp_path: Path) -> None:
    state = rotation.begin(authority)
    boards[0].follow(authority, state)
    make_backup(tmp_path / "backup.tar", fleet=authority.folder, run_dirs=())
    restore_backup(tmp_path / "backup.tar", tmp_path / "elsewhere")
    restored = Authority.open(tmp_path / "elsewhere" / "fleet")
    assert rotation.begin(restored) == state
    boards[1].follow(restored, state)
    end = rotation.finish(restored)
    ends_with(restored, is_open=False)
    for board in boards:
        board.hear(end)
        assert board.keys.present == (restored.signing_key,)


def test_a_number_is_never_used_again_after_an_old_backup_came_back(authority: Authority, tmp_path: Path) -> None:
    shutil.copytree(authority.folder, tmp_path / "old")
    first = rotation.begin(authority)
    rotation.abort(authority)
    assert rotation.begin(Authority.open(tmp_path / "old")).number >= first.number > time.time() - DAY_S


# ---- what must not count ---------------------------------------------------------------------------------------------


def test_nobody_says_in_another_s_name_that_it_follows(
    authority: Authority, boards: list[Board], caplog: pytest.LogCaptureFixture
) -> None:
    """As a thief of the old ca.key could: who connects as another has that one's topics, but not its key."""
    state = rotation.begin(authority)
    first, second = boards
    first.follow(authority, state)
    second.hear(state)
    report(authority, state, "pi-02", first.status)
    assert "which is none of its valid ones" in caplog.text
    second.ask(authority)
    forged = claim(second.status, signature=first.identity.sign(b"anything").hex())
    report(authority, state, "pi-02", forged)
    assert "somebody else spoke in its name" in caplog.text
    with authority.ledger() as ledger:
        (present,) = [serial for device, serial in ledger.valid_serials() if device == "pi-02"][:1]
    report(authority, state, "pi-02", claim(second.status, serial=present))
    assert "not by the authority that it is to follow" in caplog.text
    assert [absent.device for absent in rotation.headcount(authority, state).missing] == ["pi-02"]
    report(authority, state, "pi-02", second.status)
    assert not rotation.headcount(authority, state).missing


def test_whoever_has_the_old_authority_s_key_gets_no_certificate_by_the_new_one(
    authority: Authority, boards: list[Board]
) -> None:
    state, key = rotation.begin(authority), certificates.new_key()

    def ask(device: str, csr: str, number: int = state.number) -> object:
        request = RenewalRequest(device=device, csr=csr, authority=number)
        with authority.ledger() as ledger:
            return Renewals(authority).answer(ledger, "pi-01", encode(request), now_s=time.time())

    stranger = ask("pi-01", make_csr(key, "pi-01"))
    assert isinstance(stranger, NotRenewed)
    assert "not for the key of the present certificate" in stranger.reason
    other = ask("pi-02", boards[1].identity.ask_again("pi-02"))
    assert isinstance(other, NotRenewed)
    assert "another device than the one that sent it" in other.reason
    # Who follows an earlier statement, or none, gets what it can check.
    behind = ask("pi-01", boards[0].identity.ask_again("pi-01"), state.number - 1)
    assert isinstance(behind, Renewed)
    issued = x509.load_pem_x509_certificate(behind.certificate.encode())
    assert issued_by(issued, authority.certificate())


def test_a_device_refuses_what_is_forged_old_or_too_long_and_says_so_once(
    authority: Authority, boards: list[Board], caplog: pytest.LogCaptureFixture
) -> None:
    board, first = boards[0], rotation.begin(authority)
    board.hear(first)
    second = rotation.abort(authority)
    board.hear(second)
    before = board.identity.record
    for payload, why in {
        first.sealed.encode(): "it is an old one",
        second.sealed.replace("number", "numbed").encode(): "it was altered",
        second.sealed.encode().ljust(200_000): "24577 bytes, allowed are 24576",
    }.items():
        board.hear(payload)
        board.hear(payload)
        assert caplog.text.count(why) == 1
    assert board.identity.record == before


def test_the_sentence_has_numbers_and_names_a_few() -> None:
    missing = (Absent("pi-03", 1000.0), Absent("pi-09", None), Absent("pi-11", None, is_invited=True))
    now_s = 1000.0 + 6 * DAY_S
    assert Headcount(10, missing).sentence(now_s) == (
        "7 of 10 devices follow the new authority; pi-03 last seen 6 days ago, "
        "pi-09 not seen since the rotation began, pi-11 has a token that it has not used"
    )
    crowd = tuple(Absent(f"pi-{number}", None) for number in range(1000))
    assert Headcount(1000, crowd).sentence(now_s).endswith("and 990 more")


# ---- over a real broker ----------------------------------------------------------------------------------------------


def is_let_in(authority: Authority, identity: Identity) -> bool:
    with closing(Link("127.0.0.1", authority.settings.port, identity="pi-01", tls=identity.tls)) as link:
        try:
            link.open()
        except LinkError:
            return False
    return True


def wait_until(condition: Callable[[], bool], board: Board) -> None:
    until_s = time.monotonic() + PATIENT_S
    while not condition():
        assert time.monotonic() < until_s
        board.courier.listen(0.05)
        board.watch.work()


@pytest.mark.mosquitto
def test_a_device_follows_over_its_connection_and_the_broker_takes_no_other_any_more(
    secured: Authority, tmp_path: Path
) -> None:
    board = enrolled(secured, "pi-01", tmp_path / "pi-01")
    shutil.copytree(board.folder, tmp_path / "before")
    before = Identity(tmp_path / "before")
    link = Link("127.0.0.1", secured.settings.port, identity="pi-01", tls=board.identity.tls)
    link.open()
    with closing(link), serving(secured):
        board.start(link)
        state = rotation.begin(secured)
        wait_until(lambda: not rotation.headcount(secured, state).missing, board)
        assert is_let_in(secured, before)
        assert is_let_in(secured, board.identity)
        wait_until(lambda: link.health().down_s == 0.0, board)
        rotation.finish(secured)
        wait_until(lambda: board.identity.signing_keys == (secured.signing_key,), board)
    assert is_let_in(secured, board.identity)
    assert not is_let_in(secured, before)


# ---- around it -------------------------------------------------------------------------------------------------------


def test_the_page_gets_a_certificate_by_the_authority_that_is_left(authority: Authority) -> None:
    pair = page_certificate(authority, ["127.0.0.1"])
    rotation.begin(authority)
    before = pair.certificate.read_bytes()
    assert page_certificate(authority, ["127.0.0.1"]).certificate.read_bytes() == before
    rotation.finish(authority)
    issued = x509.load_pem_x509_certificate(page_certificate(authority, ["127.0.0.1"]).certificate.read_bytes())
    assert issued_by(issued, authority.certificate())


def test_every_node_of_a_cluster_takes_members_of_both_and_then_of_one(tmp_path: Path) -> None:
    authority = make_cluster(tmp_path / "fleet")
    board = enrolled(authority, "pi-01", tmp_path / "pi-01")
    nodes = [authority.folder / "nodes" / str(number) for number in (1, 2, 3)]
    servers = [(node / "server.pem").read_bytes() for node in nodes]
    state = rotation.begin(authority)
    assert [(node / "clients-ca.pem").read_text().count("BEGIN") for node in nodes] == [3, 3, 3]
    assert [(node / "server.pem").read_bytes() for node in nodes] == servers
    board.follow(authority, state)
    assert all(board.identity.serial in (node / "users.conf").read_text() for node in nodes)
    rotation.finish(authority)
    assert [(node / "clients-ca.pem").read_text().count("BEGIN") for node in nodes] == [2, 2, 2]
    for node in nodes:
        server = x509.load_pem_x509_certificate((node / "server.pem").read_bytes())
        key = serialization.load_pem_private_key((node / "server.key").read_bytes(), password=None)
        assert issued_by(server, authority.certificate())
        assert server.public_key() == key.public_key()


def test_the_command_says_where_it_is_and_what_comes_next(
    authority: Authority, boards: list[Board], capsys: pytest.CaptureFixture[str]
) -> None:
    def rotate(*options: str) -> str:
        assert main(["rotate", "--dir", str(authority.folder), *options]) == 0
        return capsys.readouterr().out

    assert "was never rotated" in rotate("--status")
    with pytest.raises(SecurityError, match="no rotation is under way"):
        rotate("--finish")
    with pytest.raises(ConfigError, match="add `--finish`"):
        rotate("--leave-behind", "pi-01")
    said = rotate()
    assert "0 of 2 devices follow the new authority" in said
    assert "nobody tells the devices right now" in said
    state = rotation.read_rotation(authority.folder)
    assert state is not None
    assert rotate() == said, "a second time it shows how far it is"
    for board in boards:
        board.follow(authority, state)
    assert "all have followed" in rotate("--status")
    said = rotate("--finish")
    assert "one authority is left" in said
    assert "make a backup now" in said
    assert "no rotation is under way; the last one ended" in rotate("--status")
    assert "0 of 2 devices follow" in rotate()
    assert "one authority is left" in rotate("--abort")
