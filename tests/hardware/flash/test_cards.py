from __future__ import annotations

import json
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from fixtures.cards import a_plan, invited, make, never_invited
from fixtures.stock_images import ARMHF, BOOKWORM, TRIXIE, format_fat32, stock_image
from fixtures.wheelhouses import a_wheelhouse

from sparsyedge.edge.errors import FlashError
from sparsyedge.edge.security.enrolment_messages import DEVICE_FILE_NAME, DeviceFile
from sparsyedge.hardware.flash.card import device_names
from sparsyedge.hardware.flash.card_settings import CardSettings, Wifi
from sparsyedge.hardware.flash.read_back import inspect_card
from sparsyedge.hardware.flash.stock_image import boot_volume

TOKEN = "9oJbN0iXW3yq2m8nZ5y7cQ4rT1uV6wX0aB3dE5fG7hI"


def with_wifi(ssid: str, password: str) -> Callable[[str], CardSettings]:
    """Settings of boards that join this network."""
    wifi = Wifi.from_password(ssid, password)
    return lambda device: CardSettings(hostname=device, wifi=(wifi,), wifi_country="DE")


@pytest.fixture(params=["trixie", "bookworm"])
def image(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return stock_image(tmp_path / f"{request.param}.img", {"trixie": TRIXIE, "bookworm": BOOKWORM}[request.param])


def test_a_card_reads_back_as_what_it_was_made_for(image: Path, tmp_path: Path) -> None:
    plan = a_plan(image, invite=invited, settings=with_wifi("lab net", "correct horse"))
    (card,) = make(plan, tmp_path / "card.img")
    report = inspect_card(card)
    assert report.system.release == image.stem
    assert report.device == invited("pi-07")
    assert (len(report.wheels), [one.ssid for one in report.settings.wifi]) == (5, ["lab net"])
    assert "network      cable and Wi-Fi lab net (DE)" in report.lines(now_s=0)
    assert "device       pi-07 of fleet lab" in report.lines(now_s=0)
    assert not any(TOKEN in line for line in report.lines(now_s=0))


def test_trixie_gets_cloud_init_files_with_an_instance_of_its_own(tmp_path: Path) -> None:
    image = stock_image(tmp_path / "os.img", TRIXIE)
    first, second = make(a_plan(image, invite=invited), tmp_path / "card.img", "pi-01", "pi-02")
    instances = set()
    for card, device in ((first, "pi-01"), (second, "pi-02")):
        with boot_volume(card) as volume:
            user = json.loads((volume.read("user-data") or b"").removeprefix(b"#cloud-config\n"))
            instances.add(json.loads(volume.read("meta-data") or b"")["instance-id"])
            assert json.loads(volume.read("network-config") or b"")["version"] == 2
            assert volume.read("cmdline.txt") == TRIXIE["cmdline.txt"]
        assert user["hostname"] == device
        assert user["runcmd"] == [["sh", "/boot/firmware/sparsyedge/install.sh", "start"]]
    assert len(instances) == 2


def test_bookworm_gets_a_script_that_systemd_runs_once(tmp_path: Path) -> None:
    image = stock_image(tmp_path / "os.img", BOOKWORM)
    (card,) = make(a_plan(image, invite=invited), tmp_path / "card.img")
    with boot_volume(card) as volume:
        script = (volume.read("firstrun.sh") or b"").decode()
        command_line = (volume.read("cmdline.txt") or b"").decode()
        assert volume.read("user-data") is None
    assert "set_hostname pi-07" in script
    assert "sh /boot/firmware/sparsyedge/install.sh\n" in script
    assert command_line.count("\n") == 1
    assert "init=/usr/lib/raspberrypi-sys-mods/firstboot systemd.run=/boot/firmware/firstrun.sh" in command_line


def test_a_card_is_readable_by_its_owner_alone(image: Path, tmp_path: Path) -> None:
    (card,) = make(a_plan(image, invite=invited), tmp_path / "card.img")
    assert card.stat().st_mode & 0o777 == 0o600


def test_the_wifi_password_itself_is_on_no_card(image: Path, tmp_path: Path) -> None:
    settings = with_wifi("IEEE", "password")
    (wifi,) = settings("pi-07").wifi
    # The test vector of IEEE 802.11i, annex H.4.
    assert wifi.psk == "f42c6fc52df0ebef9ebb4b90b38a5f902e83fe1b135a70e23aed762e9710a12e"
    (card,) = make(a_plan(image, invite=invited, settings=settings), tmp_path / "card.img")
    with boot_volume(card) as volume:
        files = [volume.read(name) or b"" for name in volume.names()]
    assert any((wifi.psk or "").encode() in content for content in files)
    assert not any(b'"password": "password"' in content for content in files)


def test_twenty_cards_have_twenty_identities(tmp_path: Path) -> None:
    image = stock_image(tmp_path / "os.img", TRIXIE)
    devices = device_names("pi-07", 20)
    assert (devices[0], devices[-1]) == ("pi-07", "pi-26")
    cards = make(a_plan(image, invite=invited), tmp_path / "cards" / "card.img", *devices)
    assert cards[0].name == "card-pi-07.img"
    files = [inspect_card(card).device for card in cards]
    assert [file.device for file in files] == devices
    assert len({file.token for file in files}) == 20
    assert sorted(path.name for path in (tmp_path / "cards").iterdir()) == sorted(card.name for card in cards)


@pytest.mark.parametrize(
    ("first", "count", "names"),
    [("pi-07", 1, ["pi-07"]), ("pi-9", 2, ["pi-9", "pi-10"]), ("lab", 2, ["lab-01", "lab-02"]), ("lab", 1, ["lab"])],
)
def test_ids_are_counted_up(first: str, count: int, names: list[str]) -> None:
    assert device_names(first, count) == names


@pytest.mark.parametrize("name", ["", "pi/07", "-pi", "pi 07", "x" * 64, "pi\n"])
def test_a_wrong_device_id_is_refused(name: str) -> None:
    with pytest.raises(FlashError, match="allowed are 1 to 63 letters"):
        device_names(name, 1)


def test_a_wheelhouse_travels_with_the_card_and_is_checked(tmp_path: Path) -> None:
    image = stock_image(tmp_path / "os.img", TRIXIE)
    house = a_wheelhouse(tmp_path / "house")
    (card,) = make(a_plan(image, invite=invited, wheelhouse=house), tmp_path / "card.img")
    names = inspect_card(card).wheels
    assert len(names) == 5
    with boot_volume(card, writable=True) as volume:
        volume.write(f"sparsyedge/wheels/{names[0]}", b"damaged")
    with pytest.raises(FlashError, match=f"{names[0]} on .* is damaged"):
        inspect_card(card)


def test_an_image_packed_with_xz_is_unpacked(tmp_path: Path) -> None:
    image = stock_image(tmp_path / "os.img", TRIXIE)
    packed = tmp_path / "os.img.xz"
    packed.write_bytes(lzma.compress(image.read_bytes(), preset=0))
    (card,) = make(a_plan(packed, invite=invited), tmp_path / "card.img")
    assert card.stat().st_size == image.stat().st_size
    assert inspect_card(card).device.device == "pi-07"


def _cut(folder: Path) -> Path:
    image = stock_image(folder / "os.img", TRIXIE)
    path = folder / "cut.img.xz"
    path.write_bytes(lzma.compress(image.read_bytes(), preset=0)[:-4000])
    image.unlink()
    return path


def _text(folder: Path) -> Path:
    path = folder / "os.img"
    path.write_text("not an image" * 1000)
    return path


def _zip(folder: Path) -> Path:
    path = folder / "os.zip"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    return path


@pytest.mark.parametrize(
    ("make_image", "sentence"),
    [
        (lambda folder: stock_image(folder / "os.img", ARMHF), "is a 32-bit image"),
        (lambda folder: stock_image(folder / "os.img", {"start4.elf": b"1"}), "no 64-bit Raspberry Pi kernel"),
        (lambda folder: stock_image(folder / "os.img", {"kernel8.img": b"1"}), "neither Bookworm nor Trixie"),
        (lambda folder: format_fat32(folder / "os.img", kind=0x83), "has no FAT32 boot partition"),
        (_text, "os.img has no partition table"),
        (_zip, "is packed with zip"),
        (_cut, "is damaged"),
        (lambda folder: folder / "no.img", "no image .*no.img; check the path"),
    ],
)
def test_a_wrong_image_is_one_sentence_and_nothing_is_left_behind(
    tmp_path: Path, make_image: Callable[[Path], Path], sentence: str
) -> None:
    image = make_image(tmp_path)
    out = tmp_path / "out"
    with pytest.raises(FlashError, match=sentence):
        make(a_plan(image, invite=never_invited), out / "card.img")
    assert list(out.iterdir()) == []


def test_too_little_space_on_the_disk_is_refused_before_copying(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(FlashError, match=r"a card takes 0.0 GB and .* has 0.0 GB free; make room"):
        make(a_plan(image, invite=never_invited), tmp_path / "out" / "card.img")
    assert list((tmp_path / "out").iterdir()) == []


def test_too_little_space_on_the_boot_partition_is_refused(image: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    with data.open("wb") as file:
        file.truncate(40_000_000)
    with pytest.raises(FlashError, match="files for the card take 41 MB and the image's boot partition has 34 MB free"):
        make(a_plan(image, invite=never_invited, data=[data]), tmp_path / "out" / "card.img")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_missing_wheel_leaves_nothing_behind(tmp_path: Path) -> None:
    image = stock_image(tmp_path / "os.img", BOOKWORM)
    plan = a_plan(image, invite=never_invited, wheelhouse=a_wheelhouse(tmp_path / "house"))
    with pytest.raises(FlashError, match=r"no wheel of onnxruntime.* for Python 3.11"):
        make(plan, tmp_path / "out" / "card.img")
    assert list((tmp_path / "out").iterdir()) == []


def test_an_existing_card_is_not_overwritten(image: Path, tmp_path: Path) -> None:
    card = tmp_path / "card.img"
    card.write_bytes(b"mine")
    with pytest.raises(FlashError, match="exists; remove it"):
        make(a_plan(image, invite=never_invited), card)
    assert card.read_bytes() == b"mine"


def test_the_stock_image_is_left_as_it_was(image: Path, tmp_path: Path) -> None:
    before = image.read_bytes()
    make(a_plan(image, invite=invited), tmp_path / "card.img")
    assert image.read_bytes() == before


def test_a_card_without_wheels_is_refused(image: Path, tmp_path: Path) -> None:
    (card,) = make(a_plan(image, invite=invited), tmp_path / "card.img")
    with boot_volume(card, writable=True) as volume:
        for python in ("3.11", "3.13"):
            volume.write(f"sparsyedge/wheels/SHA256SUMS-{python}", b"")
    with pytest.raises(FlashError, match="has no wheels, so its board could not install sparsyedge"):
        inspect_card(card)


def test_a_stock_image_is_no_card(image: Path) -> None:
    with pytest.raises(FlashError, match=f"has no {DEVICE_FILE_NAME}: it is a stock image"):
        inspect_card(image)


def test_a_card_whose_first_boot_was_taken_out_is_told(image: Path, tmp_path: Path) -> None:
    (card,) = make(a_plan(image, invite=invited), tmp_path / "card.img")
    hook = "user-data" if image.stem == "trixie" else "firstrun.sh"
    with boot_volume(card, writable=True) as volume:
        volume.write(hook, b"# somebody else's\n")
    with pytest.raises(FlashError, match=f"would not run its first boot: {hook}"):
        inspect_card(card)


def test_a_card_after_its_token_was_used_says_so(image: Path, tmp_path: Path) -> None:
    def used(device: str) -> DeviceFile:
        return msgspec.structs.replace(invited(device), token=None)

    (card,) = make(a_plan(image, invite=used), tmp_path / "card.img")
    assert "token        none: it has been used" in inspect_card(card).lines(now_s=0)


def test_a_card_tells_until_when_its_token_is_good(image: Path, tmp_path: Path) -> None:
    def invite(device: str) -> DeviceFile:
        return msgspec.structs.replace(invited(device), token_until=1_800_000_000)

    (card,) = make(a_plan(image, invite=invite), tmp_path / "card.img")
    report = inspect_card(card)
    good = "token        there, good for one enrolment until 2027-01-15 08:00 UTC"
    assert good in report.lines(now_s=1_799_999_999)
    late = "token        expired at 2027-01-15 08:00 UTC: make another with `sparsyedge coordinator token pi-07`"
    assert late in report.lines(now_s=1_800_000_001)


@pytest.mark.parametrize(
    ("ssid", "password"), [("net", "short"), ("net", "x" * 64), ("", "long enough"), ("n" * 33, "long enough")]
)
def test_a_wifi_that_cannot_be_is_refused(ssid: str, password: str) -> None:
    with pytest.raises(FlashError, match="allowed are"):
        Wifi.from_password(ssid, password)
