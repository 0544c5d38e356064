from __future__ import annotations

from pathlib import Path

import pytest

from sparsyedge.edge.errors import SparsyedgeError
from sparsyedge.hardware.flash.card_file import SettingKeys, load_card_file
from sparsyedge.hardware.flash.pi_options import Boards
from sparsyedge.hardware.flash.setting_checks import psk_of

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAOhB7/zzhC+HXDdGOdLwJln5NYwm6UNXx3chmQSVTG4 me@home"
COMMON = """\
user = "lab"
ssh_keys = ["key.pub"]
time_zone = "Europe/Berlin"
wifi_country = "DE"
token_life = "30d"
gateways = ["192.168.1.1"]
dns = ["192.168.1.1"]

[device.limits]
max_temperature_c = 75
min_free_disk_mb = 500

[[wifi]]
ssid = "home"
password_file = "home.txt"
priority = 10

[[wifi]]
ssid = "guests"
open = true

"""


def board(number: int) -> str:
    return (
        f'[[board]]\nid = "pi-{number:02d}"\nhostname = "room-{number}"\naddresses = ["192.168.1.{50 + number}/24"]\n'
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "key.pub").write_text(f"# mine\n{KEY}\n")
    (tmp_path / "home.txt").write_text("correct horse\n")
    return tmp_path


def boards(folder: Path, text: str, options: SettingKeys | None = None) -> Boards:
    (folder / "card.toml").write_text(text)
    file = load_card_file(folder / "card.toml")
    return Boards(devices=[one.id for one in file.board], options=options or SettingKeys(), file=file, folder=folder)


def test_twenty_boards_share_a_file_and_differ_where_they_say_so(folder: Path) -> None:
    made = boards(folder, COMMON + "".join(board(number) for number in range(1, 21)))
    settings = [made.settings(device) for device in made.devices]
    assert [one.hostname for one in settings] == [f"room-{number}" for number in range(1, 21)]
    assert {one.address.addresses for one in settings if one.address} == {
        (f"192.168.1.{50 + number}/24",) for number in range(1, 21)
    }
    assert all(one.address and one.address.gateways == ("192.168.1.1",) for one in settings)
    assert all(one.address and one.address.on == "wifi" for one in settings), "there is Wi-Fi, so it has the address"
    assert all((one.user, one.ssh_keys) == ("lab", (KEY,)) for one in settings)
    home, guests = settings[0].wifi
    assert (home.psk, home.priority, guests.psk) == (psk_of("home", "correct horse"), 10, None)


def test_a_boards_table_wins_over_the_file_and_an_option_over_both(folder: Path) -> None:
    own = 'time_zone = "Asia/Tokyo"\ntoken_life = "2d"\n[board.device.limits]\nmax_temperature_c = 60\n'
    text = COMMON + board(1) + own + board(2)
    made = boards(folder, text)
    assert [made.settings(device).time_zone for device in made.devices] == ["Asia/Tokyo", "Europe/Berlin"]
    assert [made.token_life(device) for device in made.devices] == ["2d", "30d"]
    limits = made.settings("pi-01").device["limits"]
    assert limits == {"max_temperature_c": 60, "min_free_disk_mb": 500}
    made = boards(folder, text, SettingKeys(time_zone="UTC", token_life="1w"))
    assert [made.settings(device).time_zone for device in made.devices] == ["UTC", "UTC"]
    assert made.token_life("pi-01") == "1w"


def test_a_board_can_have_dhcp_where_the_others_have_addresses(folder: Path) -> None:
    text = COMMON + board(1) + '[[board]]\nid = "pi-02"\naddresses = []\n'
    made = boards(folder, text)
    assert made.settings("pi-01").address is not None
    bare = made.settings("pi-02").address
    assert bare is not None
    assert (bare.addresses, bare.dns) == ((), ("192.168.1.1",))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('hostnam = "x"\n', "unknown key `hostnam`"),
        ('[[board]]\nid = "pi/1"\n', "board"),
        (board(1) + board(1), "board pi-01 is there 2 times"),
        ('[[wifi]]\nssid = "x"\n', "has 0 of password_file, psk and open"),
        ('[[wifi]]\nssid = "x"\nopen = true\npsk = "' + "0" * 64 + '"\n', "has 2 of password_file, psk and open"),
        ('[[wifi]]\nssid = "x"\npsk = "short"\n', "psk"),
        ('[[wifi]]\nssid = "x"\npassword_file = "no.txt"\n', "cannot read the Wi-Fi password from"),
        ('user = "lab"\nssh_keys = ["no.pub"]\n', "cannot read the ssh key from"),
        ('user = "lab"\nssh_keys = ["private"]\n', "is a private key; name private.pub beside it"),
        ('user = "lab"\nssh_keys = ["empty.pub"]\n', "has no ssh key"),
        ('user = "lab"\npassword_hash_file = "home.txt"\n', "is not one of crypt"),
        ('token_life = "1y"\n', "allowed are 10 minutes to 365 days"),
        ("[device]\nthreads = 0\n", "threads"),
        ('address_on = "radio"\n', "cable, wifi"),
    ],
)
def test_a_wrong_file_is_one_sentence_without_its_secrets(folder: Path, text: str, sentence: str) -> None:
    (folder / "private").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n")
    (folder / "empty.pub").write_text("# nothing\n")

    def read() -> None:
        made = boards(folder, 'wifi_country = "DE"\n' + text if "[[wifi]]" in text else text)
        made.settings("pi-01")
        made.token_life("pi-01")

    with pytest.raises(SparsyedgeError) as caught:
        read()
    assert sentence in str(caught.value)
    assert "correct horse" not in str(caught.value)
    assert "\n" not in str(caught.value)
