"""A device that follows orders about releases, over a broker that lives in memory; see tests/system for real ones."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fixtures.memory_broker import CHUNK, MemoryBroker
from fixtures.releases import CHECK_HANGS, DOES_NOT_IMPORT, add_release
from fixtures.web_server import Nginx, Scripted, reply

from sparsyedge.coordinator.rollout.bundle import read_wheelhouse
from sparsyedge.edge.device.courier import Courier, Member
from sparsyedge.edge.protocol.chunks import cut
from sparsyedge.edge.protocol.messages import DeviceStatus, UpgradeStatus, decode, encode
from sparsyedge.edge.protocol.releases import Action, Order, Release, ReleaseFile, Sealed, WheelSet
from sparsyedge.edge.protocol.topics import Topics
from sparsyedge.edge.security.pinned_keys import PinnedKeys
from sparsyedge.edge.security.release_seal import seal_order, seal_release
from sparsyedge.edge.upgrade import download, launch
from sparsyedge.edge.upgrade.judge import Machine
from sparsyedge.edge.upgrade.slots import Slots
from sparsyedge.edge.upgrade.upgrader import Settings, Upgrader

KEY = Ed25519PrivateKey.generate()
TOPICS = Topics("lab")
NOW_S = 1_000_000.0
BOARD = Machine("3.11", "aarch64")
FILES = {"pip-9.0-py3-none-any.whl": b"pip" * 700, "sparsyedge-9.0-py3-none-any.whl": b"ours" * 900}


@dataclass
class Scene:
    """A device in a folder, and the operator who sends it releases and orders."""

    folder: Path
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    machine: Machine = BOARD
    serial: int = 100
    now_s: float = NOW_S
    check_limit_s: float = 60.0
    slot: str = launch.FACTORY

    def start(self) -> Upgrader:
        """The device's process, begun anew."""
        self.folder.mkdir(exist_ok=True)
        self.broker.connect()
        courier = Courier(self.broker, Member("pi-01", TOPICS, "boot", "sparsyedge 0.4", 10))
        settings = Settings(
            "lab",
            PinnedKeys(KEY.public_key().public_bytes_raw().hex()),
            config=self.folder.parent / "device.toml",
            work_dir=self.folder.parent / "work",
            check_limit_s=self.check_limit_s,
        )
        slots = Slots(self.folder, self.slot)
        upgrader = Upgrader(courier, slots, settings, machine=self.machine, clock=lambda: self.now_s)
        courier.listen()
        upgrader.join()
        self.courier = courier
        return upgrader

    def offer(self, release: Release, *, spoil: Callable[[Sealed], Sealed] = lambda sealed: sealed) -> None:
        sealed = spoil(seal_release(release, KEY, chunk_bytes=CHUNK))
        self.broker.publish(TOPICS.release, encode(sealed), retain=True)

    def order(self, action: Action, bundle: str, **changes: Any) -> Order:
        self.serial += 1
        order = Order(
            fleet="lab", device="pi-01", serial=self.serial, action=action, bundle=bundle, issued_unix_s=NOW_S
        )
        order = msgspec.structs.replace(order, **changes)
        self.broker.publish(TOPICS.order("pi-01"), encode(seal_order(order, KEY)), retain=True)
        return order

    def put(self, contents: dict[str, bytes]) -> None:
        """Put files on the broker in chunks."""
        for name, content in contents.items():
            for index, chunk in cut(content, file_of(name, content).blob(CHUNK)):
                self.broker.publish(TOPICS.chunk(hashlib.sha256(content).hexdigest(), index), chunk, retain=True)

    def status(self) -> UpgradeStatus:
        upgrade = decode(self.broker.retained[TOPICS.status("pi-01")], DeviceStatus).upgrade
        assert upgrade
        return upgrade

    def idle(self, upgrader: Upgrader, *, until: Callable[[], bool] | None = None, turns: int = 400_000) -> None:
        """Turns between rounds, until nothing more happens or `until` says so."""
        done = until or (lambda: self.status().stage in ("refused", "kept", "returned", "halted", "waiting"))
        for _ in range(turns):
            while self.courier.listen(0):
                pass
            upgrader.work()
            if done() or upgrader.wants_restart:
                return
        pytest.fail(f"nothing came of it: {self.status()}")


def file_of(name: str, content: bytes) -> ReleaseFile:
    return ReleaseFile(name=name, sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))


def a_release(**changes: Any) -> Release:
    wheels = WheelSet(
        python="3.11",
        machine="aarch64",
        files=tuple(file_of(name, content) for name, content in FILES.items()),
        installed_bytes=changes.pop("installed_bytes", 10_000),
    )
    release = Release(
        fleet="lab", version=7, software="9.0", issued_unix_s=NOW_S, expires_unix_s=NOW_S + 100, sets=(wheels,)
    )
    return msgspec.structs.replace(release, **changes)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "slots")


def refusal(scene: Scene, release: Release, *, spoil: Callable[[Sealed], Sealed] = lambda sealed: sealed) -> str:
    """Why the device refuses a release that it is ordered to install."""
    scene.put(FILES)
    upgrader = scene.start()
    scene.offer(release, spoil=spoil)
    scene.order("install", release.bundle)
    scene.idle(upgrader)
    status = scene.status()
    assert (status.stage, status.order) == ("refused", scene.serial)
    assert not upgrader.wants_restart
    return status.reason


def test_an_unsigned_release_is_refused(scene: Scene) -> None:
    assert "is not signed" in refusal(scene, a_release(), spoil=lambda it: msgspec.structs.replace(it, signature=""))


def test_an_altered_release_is_refused(scene: Scene) -> None:
    def alter(sealed: Sealed) -> Sealed:
        return msgspec.structs.replace(sealed, statement=sealed.statement.replace('"9.0"', '"9.1"'))

    assert "it was altered, or is another fleet's" in refusal(scene, a_release(), spoil=alter)


def test_another_fleets_release_is_refused(scene: Scene) -> None:
    assert "is for fleet garden" in refusal(scene, a_release(fleet="garden"))


def test_an_expired_release_is_refused_also_by_a_board_whose_clock_is_behind(scene: Scene) -> None:
    scene.now_s = 0.0
    upgrader = scene.start()
    scene.order("halt", "ab" * 32, issued_unix_s=NOW_S + 500)
    scene.idle(upgrader)
    assert "has expired" in refusal(scene, a_release())


def test_an_earlier_release_sent_again_is_refused(scene: Scene) -> None:
    upgrader = scene.start()
    scene.offer(a_release(version=8, software="9.5"))
    scene.idle(upgrader, until=lambda: True)
    assert "earlier one sent again" in refusal(scene, a_release(version=7))


def test_a_release_older_than_installed_is_refused(scene: Scene) -> None:
    assert "is older than installed" in refusal(scene, a_release(software="0.0.1"))


def test_a_release_for_another_machine_is_refused(scene: Scene) -> None:
    scene.machine = Machine("3.13", "aarch64")
    assert "this device has Python 3.13 on aarch64" in refusal(scene, a_release())


def test_a_release_too_large_for_the_disk_is_refused_before_it_is_fetched(scene: Scene) -> None:
    assert "too large for the disk" in refusal(scene, a_release(installed_bytes=1 << 40))
    assert not any("/blob/" in topic for topic in scene.broker.asked)


def test_an_altered_file_is_fetched_again_and_then_refused(scene: Scene) -> None:
    sha256 = hashlib.sha256(FILES["sparsyedge-9.0-py3-none-any.whl"]).hexdigest()
    scene.put(FILES)
    scene.broker.retained[TOPICS.chunk(sha256, 1)] = b"x" * CHUNK
    upgrader = scene.start()
    scene.offer(a_release())
    scene.order("install", a_release().bundle)
    scene.idle(upgrader)
    assert "sparsyedge-9.0-py3-none-any.whl does not match its hash" in scene.status().reason
    assert not (scene.folder / "wheels" / sha256).exists()


def test_a_download_goes_on_after_a_restart_where_it_was(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "WINDOW", 1)
    scene.put(FILES)
    upgrader = scene.start()
    scene.offer(a_release())
    scene.order("install", a_release().bundle)
    part = scene.folder / "wheels" / f"{hashlib.sha256(FILES['pip-9.0-py3-none-any.whl']).hexdigest()}.part"
    scene.idle(upgrader, until=lambda: part.exists() and part.stat().st_size >= 2 * CHUNK)
    first = TOPICS.chunk(part.name.removesuffix(".part"), 0)
    scene.broker.asked.clear()
    del upgrader
    upgrader = scene.start()
    scene.idle(upgrader)  # to where pip's wheel turns out to be none
    assert first not in scene.broker.asked
    assert (part.parent / part.name.removesuffix(".part")).read_bytes() == FILES["pip-9.0-py3-none-any.whl"]


WANTED = [hashlib.sha256(content).hexdigest() for content in FILES.values()]


def serve_files(nginx: Nginx) -> str:
    """Put the files on a web server; returns the URL of their folder."""
    (nginx.root / "lab").mkdir()
    for sha256, content in zip(WANTED, FILES.values(), strict=True):
        (nginx.root / "lab" / sha256).write_bytes(content)
    return f"{nginx.url}/lab"


def take(scene: Scene, blobs: str) -> Upgrader:
    """A device that is ordered to install a release of a web store."""
    upgrader = scene.start()
    scene.offer(a_release(blobs=blobs))
    scene.order("install", a_release().bundle)
    return upgrader


def fetched(scene: Scene) -> list[bytes]:
    return [(scene.folder / "wheels" / sha256).read_bytes() for sha256 in WANTED]


@pytest.mark.heavy
def test_the_files_of_a_release_come_from_its_web_store(scene: Scene, nginx: Nginx) -> None:
    upgrader = take(scene, serve_files(nginx))
    scene.idle(upgrader, turns=10**9)  # to where pip's wheel turns out to be none
    assert fetched(scene) == list(FILES.values())
    assert [request.path for request in nginx.requests()] == [f"/lab/{sha256}" for sha256 in WANTED]
    assert not any("/blob/" in topic for topic in scene.broker.asked)


@pytest.mark.heavy
def test_what_a_web_store_lacks_or_has_altered_comes_from_the_broker(scene: Scene, nginx: Nginx) -> None:
    url = serve_files(nginx)
    (nginx.root / "lab" / WANTED[0]).write_bytes(b"x" * len(FILES["pip-9.0-py3-none-any.whl"]))
    scene.put(FILES)
    scene.idle(take(scene, url), turns=10**9)
    assert fetched(scene) == list(FILES.values())
    # The store is left alone for a while after it has failed.
    assert [request.path for request in nginx.requests()] == [f"/lab/{WANTED[0]}"]


def test_a_store_whose_address_is_none_is_not_asked(scene: Scene) -> None:
    scene.put(FILES)
    scene.idle(take(scene, "file:///etc/passwd"))
    assert fetched(scene) == list(FILES.values())


def test_a_web_download_is_cut_when_a_round_begins_and_goes_on_afterwards(
    scene: Scene, scripted: Callable[[Callable[[socket.socket, bytes], None]], Scripted]
) -> None:
    content, half = FILES["pip-9.0-py3-none-any.whl"], 1000

    def answer(client: socket.socket, request: bytes) -> None:
        if f"Range: bytes={half}-{len(content) - 1}".encode() in request:
            reply("206 Partial Content", content[half:], f"Content-Range: bytes {half}-{len(content) - 1}/*")(
                client, request
            )
        elif WANTED[0].encode() in request:
            reply("200 OK", content[:half], length=len(content))(client, request)
            client.recv(1)  # until the device hangs up
        else:
            reply("200 OK", FILES["sparsyedge-9.0-py3-none-any.whl"])(client, request)

    server = scripted(answer)
    upgrader = take(scene, f"{server.url}/lab")
    part = scene.folder / "wheels" / f"{WANTED[0]}.part"
    scene.idle(upgrader, until=lambda: part.exists() and part.stat().st_size == half, turns=10**9)
    upgrader.hold()
    scene.idle(upgrader, turns=10**9)
    assert fetched(scene) == list(FILES.values())
    assert len(server.requests) == 3
    assert not any("/blob/" in topic for topic in scene.broker.asked)


def test_a_halt_ends_what_is_under_way(scene: Scene) -> None:
    upgrader = scene.start()
    scene.offer(a_release())
    scene.order("install", a_release().bundle)
    scene.idle(upgrader, until=lambda: scene.status().stage == "downloading")
    scene.order("halt", a_release().bundle)
    scene.idle(upgrader, until=lambda: scene.status().stage == "halted")
    scene.put(FILES)
    for _ in range(20):
        scene.courier.listen(0)
        upgrader.work()
    assert scene.status().stage == "halted"
    assert not (scene.folder / "a").exists()


def test_forged_and_repeated_orders_are_not_followed_and_reported(scene: Scene) -> None:
    upgrader = scene.start()
    scene.offer(a_release())
    forger = Ed25519PrivateKey.generate()
    order = Order(fleet="lab", device="pi-01", serial=500, action="install", bundle="ab" * 32, issued_unix_s=NOW_S)
    scene.broker.publish(TOPICS.order("pi-01"), encode(seal_order(order, forger)), retain=True)
    scene.idle(upgrader, until=lambda: "not signed with the fleet's key" in scene.status().alarm)
    scene.order("halt", a_release().bundle)
    scene.idle(upgrader, until=lambda: scene.status().stage == "halted")
    scene.order("install", a_release().bundle, serial=3)
    scene.idle(upgrader, until=lambda: "earlier one sent again" in scene.status().alarm)
    scene.order("install", a_release().bundle, device="pi-02")
    scene.idle(upgrader, until=lambda: "is for pi-02" in scene.status().alarm)
    assert scene.status().stage == "halted"


def test_a_release_and_an_order_do_not_pass_for_each_other(scene: Scene) -> None:
    upgrader = scene.start()
    sealed = seal_release(a_release(), KEY)
    scene.broker.publish(TOPICS.order("pi-01"), encode(sealed), retain=True)
    scene.idle(upgrader, until=lambda: "the order is not signed" in scene.status().alarm)


def test_the_first_accepted_update_ends_a_trial(scene: Scene) -> None:
    scene.folder.mkdir()
    launch.write_trial(scene.folder, launch.Trial("a", launch.FACTORY, "ab" * 32, 1, 60.0))
    scene.slot = "a"
    upgrader = scene.start()
    assert launch.read_trial(scene.folder) is not None
    upgrader.note_accepted()
    assert launch.read_trial(scene.folder) is None
    assert scene.status().stage == "kept"


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("code", "limit_s", "reason"),
    [
        (DOES_NOT_IMPORT, 300.0, "the self-check of release 9.0 failed"),
        (CHECK_HANGS, 3.0, "the self-check of release 9.0 did not end within 3 s"),
    ],
)
def test_a_release_that_fails_its_own_check_is_refused_and_nothing_is_switched(
    scene: Scene, code: str, limit_s: float, reason: str
) -> None:
    wheelhouse = add_release(scene.folder.parent / "wheelhouse", "9.0", code)
    _, sets = read_wheelhouse(wheelhouse)
    scene.put({file.name: (wheelhouse / file.name).read_bytes() for file in sets[0].files})
    scene.machine, scene.check_limit_s = Machine.here(), limit_s
    upgrader = scene.start()
    release = a_release(sets=sets)
    scene.offer(release)
    scene.order("install", release.bundle)
    scene.idle(upgrader, turns=10**9)
    assert scene.status().stage == "refused"
    assert reason in scene.status().reason
    assert launch.current_slot(scene.folder) == launch.FACTORY
    assert not upgrader.wants_restart
