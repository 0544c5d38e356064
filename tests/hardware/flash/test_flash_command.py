"""The command line, with a real authority behind it."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from fixtures.stock_images import ARMHF, TRIXIE, stock_image
from fixtures.wheelhouses import LIBRARY, a_wheelhouse_for_all, add_wheel

from sparsyedge.edge.cli import main
from sparsyedge.edge.data import load
from sparsyedge.edge.security.enrolment_messages import DEVICE_FILE_NAME, read_device_file, write_device_file
from sparsyedge.hardware.flash.card_data import card_data
from sparsyedge.hardware.flash.read_back import inspect_card
from sparsyedge.hardware.flash.stock_image import boot_volume
from sparsyedge.hardware.flash.wheel_hashes import write_lists


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a fleet's authority and a stock image."""
    monkeypatch.chdir(tmp_path)
    assert main(["coordinator", "init", "fleet", "--host", "coordinator.local,192.168.7.2"]) == 0
    stock_image(tmp_path / "os.img", TRIXIE)
    a_wheelhouse_for_all(tmp_path / "wheels")
    return tmp_path


def write_npz(path: Path, **more: Any) -> Path:
    """Four tiny images of two classes."""
    x, y = np.zeros((4, 8, 8, 1), dtype=np.uint8), np.array([0, 1, 0, 1])
    np.savez(path, **{"x_train": x, "y_train": y, "names": ["cat", "dog"], **more})
    return path


def flash(*arguments: str) -> int:
    return main(["flash", *arguments])


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence of a command that must fail."""
    capsys.readouterr()
    assert flash(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("sparsyedge: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def sign_elsewhere() -> None:
    """The wheelhouse with lists that the authority signed."""
    write_lists(Path("wheels"))
    assert main(["coordinator", "sign-wheels", "wheels"]) == 0


PI = ("pi", "--image", "os.img", "--out", "card.img", "--device-id", "pi-07", "--wheelhouse", "wheels")


def test_one_command_makes_a_card_that_verifies(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_npz(lab / "mine.npz")
    assert flash(*PI, "--data", "mine.npz", "--coordinator", "192.168.7.2", "--share", "3/8") == 0
    told = capsys.readouterr().out
    assert "data: mine.npz: 4 samples to train on, as mine.npz" in told
    assert all(understood in told for understood in ("1 x 8 x 8", "uint8", "cat, dog"))
    assert flash("verify", "card.img") == 0
    printed = capsys.readouterr().out
    assert "device       pi-07 of fleet default" in printed
    assert "coordinator  192.168.7.2, members 8883, new devices 8884" in printed
    assert "token        there, good for one enrolment" in printed
    assert "installs     sparsyedge from 5 wheels on the card" in printed
    assert "trains on    /var/lib/sparsyedge/data/mine.npz (mine.npz on the card)" in printed
    device = inspect_card(lab / "card.img").device
    assert device.data is not None
    assert device.data.partition is not None
    assert (device.data.partition.index, device.data.partition.devices) == (3, 8)


def test_the_next_steps_lead_to_a_member_of_the_fleet(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert flash(*PI, "--data", "cifar10") == 0
    told = capsys.readouterr().out
    assert max(map(len, told.partition("next:\n")[2].splitlines())) <= 80
    words = " ".join(told.split())
    assert "cifar10 does not travel: every device downloads 170 MB when it starts (at least 3 minutes" in words
    assert "Write card.img to a card" in words
    assert "Put the card into pi-07, with a network cable there, and switch on before 2" in words
    for command in ("broker", "enrol", "identities"):
        assert f"`sparsyedge coordinator {command} --dir fleet`" in words
    assert "`sparsyedge coordinator devices RUN_DIR` shows it online" in words
    assert "sparsyedge-error.txt on its boot partition" in words


def test_the_op_library_of_a_card_is_on_the_authoritys_record(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sha256 = hashlib.sha256(LIBRARY).hexdigest()
    assert flash(*PI) == 0
    told = capsys.readouterr().out
    assert f"recorded: linux-aarch64 {sha256[:12]}... of sparsyedge-0.1.0" in told
    assert "sign again, so that devices accept the artifacts: sparsyedge coordinator sign ARTIFACTS --dir fleet" in told
    assert flash("android", "--device-id", "phone-03", "--wheelhouse", "wheels") == 0
    told = capsys.readouterr().out
    assert f"on record: linux-aarch64 {sha256[:12]}..." in told
    assert "sign again" not in told
    (recorded,) = json.loads((lab / "fleet" / "op_libraries.json").read_text())
    assert (recorded["platform"], recorded["sha256"]) == ("linux-aarch64", sha256)


def test_a_folder_of_images_travels_as_one_file_with_the_names_of_its_classes(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(("tshirt", "trouser", "bag")):
        (lab / "photos" / name).mkdir(parents=True)
        (lab / "photos" / name / "1.pgm").write_bytes(b"P5\n4 4\n255\n" + bytes([number]) * 16)
    assert flash(*PI, "--data", "photos") == 0
    told = capsys.readouterr().out
    assert "data: photos: 3 samples to train on, as photos.npz" in told
    assert "bag, trouser, tshirt" in told
    with boot_volume(lab / "card.img") as volume:
        packed = np.load(io.BytesIO(volume.read("sparsyedge/data/photos.npz") or b""), allow_pickle=False)
    assert sorted(packed) == ["names", "x_train", "y_train"]
    assert packed["names"].tolist() == ["bag", "trouser", "tshirt"]
    assert (packed["x_train"].shape, packed["x_train"].dtype) == ((3, 4, 4, 1), np.uint8)
    assert packed["x_train"][:, 0, 0, 0].tolist() == [2, 1, 0]
    device = inspect_card(lab / "card.img").device
    assert device.data is not None
    assert device.data.dataset == "/var/lib/sparsyedge/data/photos.npz"


def test_a_test_part_of_images_is_kept(tmp_path: Path) -> None:
    for part, count in (("train", 2), ("test", 1)):
        for name in ("cat", "dog"):
            (tmp_path / "pets" / part / name).mkdir(parents=True)
            for number in range(count):
                (tmp_path / "pets" / part / name / f"{number}.ppm").write_bytes(b"P6\n2 2\n255\n" + bytes(12))
    with card_data(str(tmp_path / "pets")) as data:
        assert data.file is not None
        dataset = load(str(data.file))
        assert (len(dataset.train), len(dataset.test), dataset.names) == (4, 2, ("cat", "dog"))
    assert not data.file.exists()


def test_digits_travel_since_a_board_has_no_scikit_learn(lab: Path) -> None:
    assert flash(*PI, "--data", "digits") == 0
    with boot_volume(lab / "card.img") as volume:
        (lab / "from-card.npz").write_bytes(volume.read("sparsyedge/data/digits.npz") or b"")
    here, there = load("digits"), load("from-card.npz")
    np.testing.assert_array_equal(here.train.x, there.train.x)
    np.testing.assert_array_equal(here.train.y, there.train.y)
    assert here.names == there.names


def test_a_data_set_of_a_package_that_the_card_lacks_is_refused(
    lab: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = lab / "site" / "toys-1.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1\n")
    (record / "entry_points.txt").write_text("[sparsyedge.datasets]\ntoy = toys:load\n")
    monkeypatch.syspath_prepend(str(lab / "site"))
    assert "a package that is installed here and not on the card; save its arrays" in failed(
        capsys, *PI, "--data", "toy"
    )


def test_a_device_file_that_names_what_a_board_cannot_read_is_refused(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["coordinator", "token", "pi-07", "--dataset", "digits", "--out", DEVICE_FILE_NAME]) == 0
    assert "add `--data digits`" in failed(capsys, *PI, "--device-file", DEVICE_FILE_NAME)
    assert "--share goes into a new device file" in failed(
        capsys, *PI, "--device-file", DEVICE_FILE_NAME, "--share", "0/2"
    )
    sign_elsewhere()
    assert flash(*PI, "--device-file", DEVICE_FILE_NAME, "--data", "digits") == 0


def test_a_series_has_ids_tokens_and_shares_of_its_own(lab: Path) -> None:
    assert flash(*PI, "--count", "3", "--data", "digits", "--share", "0/3") == 0
    devices = [inspect_card(lab / f"card-pi-0{number}.img").device for number in (7, 8, 9)]
    assert [device.device for device in devices] == ["pi-07", "pi-08", "pi-09"]
    assert len({device.token for device in devices}) == 3
    assert [device.data.partition.index for device in devices if device.data and device.data.partition] == [0, 1, 2]


def test_wheels_that_nobody_signed_go_on_no_card(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coordinator", "token", "pi-07", "--out", DEVICE_FILE_NAME]) == 0
    sentence = failed(capsys, *PI, "--device-file", DEVICE_FILE_NAME)
    assert (
        "copy SHA256SUMS-3.13 from there to where the authority is, run `sparsyedge coordinator sign-wheels" in sentence
    )
    assert not (lab / "card.img").exists()
    assert main(["coordinator", "init", "other", "--host", "elsewhere"]) == 0
    assert main(["coordinator", "sign-wheels", "wheels", "--dir", "other"]) == 0
    assert "are not signed by this device's fleet" in failed(capsys, *PI, "--device-file", DEVICE_FILE_NAME)
    # What the first attempt has left beside the wheels is what there is to sign.
    assert main(["coordinator", "sign-wheels", "wheels"]) == 0
    assert "signed wheels/SHA256SUMS-3.13 with key" in capsys.readouterr().out
    assert flash(*PI, "--device-file", DEVICE_FILE_NAME) == 0


def test_the_key_signs_nothing_but_lists_of_wheels(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coordinator", "sign-wheels", "wheels"]) == 2
    assert "has no list of wheels" in capsys.readouterr().err
    for content in (
        b"",
        b"sparsyedge manifest 1\n{}",
        b"# sparsyedge wheels 1\n",
        b"# sparsyedge wheels 1\nabc  ../x.whl\n",
    ):
        (lab / "wheels" / "SHA256SUMS-3.13").write_bytes(content)
        assert main(["coordinator", "sign-wheels", "wheels"]) == 2
        assert "is not a list of wheels and their hashes" in capsys.readouterr().err


def test_a_card_whose_wheels_are_not_the_signed_ones_does_not_verify(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flash(*PI) == 0
    with boot_volume(lab / "card.img", writable=True) as volume:
        listed = volume.read("sparsyedge/wheels/SHA256SUMS-3.13") or b""
        volume.write("sparsyedge/wheels/SHA256SUMS-3.13", listed.replace(b"  pip", b"  pop"))
    assert "is not signed with the fleet's key" in failed(capsys, "verify", "card.img")


def test_an_identity_made_elsewhere_is_taken_from_its_file(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coordinator", "token", "pi-07", "--out", DEVICE_FILE_NAME]) == 0
    sign_elsewhere()
    assert flash(*PI, "--device-file", DEVICE_FILE_NAME) == 0
    assert inspect_card(lab / "card.img").device == read_device_file(lab / DEVICE_FILE_NAME)
    other = ("pi", "--image", "os.img", "--out", "other.img", "--device-id", "pi-08", "--device-file", DEVICE_FILE_NAME)
    assert "device files are for pi-07 and cards for pi-08" in failed(capsys, *other)
    assert not (lab / "other.img").exists()


def test_an_expired_token_is_refused_before_a_card_is_made(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coordinator", "token", "pi-07", "--out", DEVICE_FILE_NAME]) == 0
    made = read_device_file(lab / DEVICE_FILE_NAME)
    write_device_file(lab / DEVICE_FILE_NAME, msgspec.structs.replace(made, token_until=1_000_000_000))
    sentence = failed(capsys, *PI, "--device-file", DEVICE_FILE_NAME)
    assert "the token in the file of pi-07 expired at 2001-09-09 01:46 UTC; make another with" in sentence
    assert not (lab / "card.img").exists()


def test_bad_inputs_are_one_sentence_and_leave_nothing(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stock_image(lab / "armhf.img", ARMHF)
    add_wheel(lab / "house", "pip-25.1-py3-none-any.whl")
    (lab / "empty").mkdir()
    write_npz(lab / "text.npz", y_train=np.array(["cat", "dog", "cat", "dog"]))
    write_npz(lab / "labels.npz", y_train=np.array([0, 1, 2, 3]))
    before = sorted(path.name for path in lab.iterdir())
    cases = {
        "is a 32-bit image": [*PI[:2], "armhf.img", *PI[3:]],
        "no image no.img": [*PI[:2], "no.img", *PI[3:]],
        "allowed are 1 to 63 letters": [*PI[:6], "pi/07"],
        "holds no wheel of sparsyedge": [*PI, "--wheelhouse", "house"],
        "no wheelhouse nothing; leave out --wheelhouse": [*PI, "--wheelhouse", "nothing"],
        "allowed are an .npz file, a folder of images": [*PI, "--data", "nothing"],
        "has neither an .npz file nor folders of images": [*PI, "--data", "empty"],
        "has 2 .npz files, needed is one": [*PI, "--data", "."],
        "y_train in text.npz is text": [*PI, "--data", "text.npz"],
        "label 2 of sample 2": [*PI, "--data", "labels.npz"],
        "each --wifi-ssid needs a --wifi-password-file": [*PI, "--wifi-ssid", "net"],
        "cannot read the Wi-Fi password": [*PI, "--wifi-ssid", "net", "--wifi-password-file", "no.txt"],
        "nowhere": [*PI, "--fleet-dir", "nowhere"],
        "allowed is a disk in /dev": [*PI, "--write", "card"],
        "write them one by one": [*PI, "--count", "2", "--write", "/dev/sdb"],
        "count is 0": [*PI, "--count", "0"],
        "no wheel nothing.whl": ["wheelhouse", "--out", "new", "--wheel", "nothing.whl"],
        "wheels exists; remove it": ["wheelhouse", "--out", "wheels"],
        "no authority in nowhere": ["wheelhouse", "--out", "new", "--fleet-dir", "nowhere"],
        "has no sparsyedge-device.json": ["verify", "os.img"],
        "cannot read image": ["verify", "no.img"],
    }
    for sentence, arguments in cases.items():
        assert sentence in failed(capsys, *arguments), sentence
    assert sorted(path.name for path in lab.iterdir()) == before


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAOhB7/zzhC+HXDdGOdLwJln5NYwm6UNXx3chmQSVTG4 me@home"


def test_the_options_of_a_home_network_are_on_the_card(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (lab / "key.pub").write_text(f"{KEY}\n")
    for name in ("attic", "cellar"):
        (lab / name).write_text(f"password of {name}\n")
    login = ["--user", "lab", "--ssh-key", "key.pub", "--hostname", "kitchen"]
    place = ["--locale", "de_DE", "--keyboard", "de", "--time-zone", "Europe/Berlin"]
    wifi = ["--wifi-ssid", "attic", "--wifi-password-file", "attic", "--wifi-hidden", "attic"]
    wifi += ["--wifi-ssid", "cellar", "--wifi-password-file", "cellar", "--wifi-country", "de"]
    address = ["--address", "192.168.1.50/24", "--gateway", "192.168.1.1", "--dns", "192.168.1.1"]
    device = ["--token-life", "30d", "--set", "threads=2", "--set", "limits.max_temperature_c=70"]
    assert flash(*PI, *login, *place, *wifi, *address, *device) == 0
    assert flash("verify", "card.img") == 0
    printed = capsys.readouterr().out
    assert "host name    kitchen" in printed
    assert "network      cable and Wi-Fi attic, cellar (DE), 192.168.1.50/24 on Wi-Fi" in printed
    assert "may log in   lab with 1 ssh key\n" in printed
    assert "set to       de_DE.UTF-8, de, Europe/Berlin" in printed
    assert "device.toml  also threads, limits" in printed
    assert "password of" not in printed
    report = inspect_card(lab / "card.img")
    attic, cellar = report.settings.wifi
    assert (attic.hidden, cellar.hidden) == (True, False)
    assert attic.priority > cellar.priority
    assert report.device.token_until is not None
    assert abs(report.device.token_until - time.time() - 30 * 86400) < 3600
    content = (lab / "card.img").read_bytes()
    assert b"password of" not in content


def test_a_card_for_no_named_coordinator_looks_for_it_in_its_network(lab: Path) -> None:
    assert flash(*PI) == 0
    assert inspect_card(lab / "card.img").device.find
    assert flash("pi", "--update", "card.img", "--coordinator", "10.0.0.9") == 0
    device = inspect_card(lab / "card.img").device
    assert (device.host, device.find) == ("10.0.0.9", False)


def test_a_file_makes_a_card_for_each_of_its_boards(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    boards = [f'[[board]]\nid = "pi-{n}"\nhostname = "room-{n}"\naddresses = ["10.0.0.{n}/24"]\n' for n in (1, 2)]
    (lab / "card.toml").write_text('time_zone = "UTC"\n' + "".join(boards))
    several = ("pi", "--image", "os.img", "--out", "card.img", "--wheelhouse", "wheels", "--card", "card.toml")
    assert flash(*several) == 0
    reports = [inspect_card(lab / f"card-pi-{number}.img") for number in (1, 2)]
    assert [report.device.device for report in reports] == ["pi-1", "pi-2"]
    assert [report.settings.hostname for report in reports] == ["room-1", "room-2"]
    (lab / "card.toml").write_text("".join(boards).replace("10.0.0.2", "10.0.0.1"))
    assert "pi-1 and pi-2 would both have address 10.0.0.1" in failed(capsys, *several)
    (lab / "card.toml").write_text('time_zone = "UTC"\n')
    assert "nothing says whose card it is" in failed(capsys, *several)


def test_boards_with_identities_made_elsewhere_are_in_a_file(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2):
        assert main(["coordinator", "token", f"pi-{number}", "--out", f"{number}.json"]) == 0
    sign_elsewhere()
    boards = [f'[[board]]\nid = "pi-{number}"\ndevice_file = "{number}.json"\n' for number in (1, 2)]
    (lab / "card.toml").write_text("".join(boards))
    several = ("pi", "--image", "os.img", "--out", "card.img", "--wheelhouse", "wheels", "--card", "card.toml")
    assert flash(*several, "--fleet-dir", "nowhere") == 0
    assert inspect_card(lab / "card-pi-2.img").device == read_device_file(lab / "2.json")
    (lab / "card.toml").write_text("".join(boards).replace("2.json", "1.json"))
    assert "the device file of board pi-2 is for pi-1" in failed(capsys, *several)


def test_update_changes_a_card_and_asks_the_authority_only_for_a_token(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flash(*PI) == 0
    before = inspect_card(lab / "card.img")
    update = ("pi", "--update", "card.img")
    assert flash(*update, "--hostname", "cellar", "--fleet-dir", "nowhere") == 0
    told = capsys.readouterr().out
    assert "card.img: changed the card of pi-07" in told
    after = inspect_card(lab / "card.img")
    assert (after.settings.hostname, after.device) == ("cellar", before.device)
    assert flash(*update, "--token-life", "2w") == 0
    renewed = inspect_card(lab / "card.img")
    assert renewed.device.token not in (None, before.device.token)
    assert renewed.settings.hostname == "cellar"
    content = (lab / "card.img").read_bytes()
    for sentence, arguments in {
        "is the card of pi-07, not of pi-08": [*update, "--device-id", "pi-08"],
        "--image is for a new card": [*update, "--image", "os.img"],
        "no card no.img": ["pi", "--update", "no.img"],
        "is not a card that `flash pi` made": ["pi", "--update", "os.img"],
        "RFC 1123": [*update, "--hostname", "a_b"],
        "no authority in nowhere": [*update, "--new-token", "--fleet-dir", "nowhere"],
        "--new-token is for --update": [*PI, "--new-token"],
        "--out is missing": ["pi", "--image", "os.img"],
    }.items():
        assert sentence in failed(capsys, *arguments), sentence
    assert (lab / "card.img").read_bytes() == content


def test_a_wifi_password_comes_from_a_file(lab: Path) -> None:
    (lab / "password").write_text("correct horse\n")
    assert flash(*PI, "--wifi-ssid", "lab", "--wifi-password-file", "password", "--wifi-country", "DE") == 0
    assert [one.ssid for one in inspect_card(lab / "card.img").settings.wifi] == ["lab"]


def test_a_phones_bundle_is_one_script_that_unpacks_itself(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert flash("android", "--device-id", "phone-03", "--wheelhouse", "wheels") == 0
    bundle = lab / "sparsyedge-phone-03.sh"
    words = " ".join(capsys.readouterr().out.split())
    assert f"run `sh {bundle.name}` in Termux" in words
    assert "`sparsyedge coordinator identities --dir fleet` lists phone-03" in words
    assert bundle.stat().st_mode & 0o777 == 0o600
    content = bundle.read_bytes()
    offset = int(content.split(b"PAYLOAD_OFFSET=")[1][:16])
    with tarfile.open(fileobj=io.BytesIO(content[offset - 1 :])) as archive:
        names = archive.getnames()
        device = archive.extractfile(DEVICE_FILE_NAME)
        assert device is not None
        assert b"phone-03" in device.read()
    assert {"setup.sh", "run.sh", "wheels/pip-25.1-py3-none-any.whl"} <= set(names)
    assert any("cp311" in name for name in names)
    assert any("cp313" in name for name in names)
    unpacked = lab / "unpacked"
    unpacked.mkdir()
    subprocess.run(f"tail -c +{offset} {bundle.name} | tar -x -C unpacked", shell=True, check=True, cwd=lab)
    assert sorted(path.name for path in unpacked.iterdir()) == [
        "install_wheels.sh",
        "launch.py",
        "run.sh",
        "setup.sh",
        DEVICE_FILE_NAME,
        "wheels",
    ]


@pytest.mark.parametrize(
    "script", ["card/firstboot.sh", "card/install.sh", "card/install_wheels.sh", "phone/setup.sh", "phone/run.sh"]
)
def test_the_scripts_are_valid_shell(script: str) -> None:
    from sparsyedge.hardware import flash as package

    path = Path(package.__file__).parent / script
    subprocess.run(["sh", "-n", str(path)], check=True)


def test_no_device_installs_from_an_index() -> None:
    from sparsyedge.hardware import flash as package

    installs = []
    for path in Path(package.__file__).parent.rglob("*.sh"):
        installs += re.findall(r"^.*\bpip\S* install\b.*$", path.read_text().replace("\\\n", ""), re.MULTILINE)
    assert len(installs) == 1
    assert all("--no-index" in line and "--require-hashes" in line for line in installs)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
@pytest.mark.parametrize("service", ["sparsyedge-firstboot.service", "sparsyedge.service"])
def test_the_services_are_shut_in(service: str) -> None:
    from sparsyedge.hardware import flash as package

    path = Path(package.__file__).parent / "card" / service
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=50", "--no-pager", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr
