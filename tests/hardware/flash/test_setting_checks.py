from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sparsyedge.edge.errors import FlashError
from sparsyedge.hardware.flash import setting_checks as checks
from sparsyedge.hardware.flash.card_settings import CardSettings, StaticAddress, Wifi, checked_settings

ED25519 = Ed25519PrivateKey.from_private_bytes(bytes(range(32))).public_key()
KEY = ED25519.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
HASH = "$6$saltsalt$" + "a" * 86


@pytest.mark.parametrize(
    ("check", "value", "kept"),
    [
        (checks.checked_hostname, "pi-07", "pi-07"),
        (checks.checked_hostname, "7", "7"),
        (checks.hostname_of, "pi_07.lab", "pi-07-lab"),
        (checks.checked_user, "lab_1", "lab_1"),
        (checks.checked_password_hash, HASH, HASH),
        (checks.checked_ssh_key, f"  {KEY} me@home\n", f"{KEY} me@home"),
        (checks.checked_locale, "de_DE", "de_DE.UTF-8"),
        (checks.checked_locale, "en_GB.utf8", "en_GB.UTF-8"),
        (checks.checked_locale, "C.UTF-8", "C.UTF-8"),
        (checks.checked_keyboard, "de:nodeadkeys", "de:nodeadkeys"),
        (checks.checked_time_zone, "Europe/Berlin", "Europe/Berlin"),
        (checks.checked_country, "de", "DE"),
        (checks.checked_ssid, "ü" * 16, "ü" * 16),
        (checks.checked_token_life, "30d", "30d"),
    ],
)
def test_a_good_setting_is_kept(check: Callable[[str], str], value: str, kept: str) -> None:
    assert check(value) == kept


@pytest.mark.parametrize(
    ("check", "value", "sentence"),
    [
        (checks.checked_hostname, "", "host name is '', allowed are 1 to 63 letters"),
        (checks.checked_hostname, "pi_07", "RFC 1123"),
        (checks.checked_hostname, "-pi", "RFC 1123"),
        (checks.checked_hostname, "pi-", "RFC 1123"),
        (checks.checked_hostname, "x" * 64, "RFC 1123"),
        (checks.checked_hostname, "a.b", "RFC 1123"),
        (checks.checked_user, "Lab", "allowed are 1 to 31 of a-z"),
        (checks.checked_user, "x;reboot", "allowed are 1 to 31 of a-z"),
        (checks.checked_user, "root", "one of the system's own"),
        (checks.checked_user, "sparsyedge", "one of the system's own"),
        (checks.checked_ssh_key, "hello", "'hello' is not a public ssh key"),
        (checks.checked_ssh_key, "ssh-ed25519 AAAA", "is not a public ssh key"),
        (checks.checked_ssh_key, KEY.replace("ssh-ed25519", "ssh-rsa"), "is not a public ssh key"),
        (checks.checked_ssh_key, KEY[:-8], "is not a public ssh key"),
        (checks.checked_ssh_key, "-----BEGIN OPENSSH PRIVATE KEY-----", "is a private key"),
        (checks.checked_locale, "de_XX", "locale is 'de_XX', which no system has"),
        (checks.checked_locale, "de_DE.ISO-8859-1", "which no system has"),
        (checks.checked_keyboard, "qwertz", "keyboard is 'qwertz', allowed is a layout"),
        (checks.checked_keyboard, "de:$(x)", "allowed is a layout"),
        (checks.checked_time_zone, "Europe/Berln", "did you mean Europe/Berlin?"),
        (checks.checked_time_zone, "../../etc/passwd", "which is not one"),
        (checks.checked_country, "UK", "Wi-Fi country is 'UK', allowed are two letters of ISO 3166"),
        (checks.checked_country, "Germany", "allowed are two letters"),
        (checks.checked_ssid, "", "has 0 bytes, allowed are 1 to 32"),
        (checks.checked_ssid, "ü" * 17, "has 34 bytes, allowed are 1 to 32"),
        (checks.checked_ssid, "a\nb", "cannot be printed"),
        (checks.read_address, "192.168.1.300/24", "which is not one"),
        (checks.read_address, "192.168.1.5/33", "which is not one"),
        (checks.read_address, "192.168.1.5", "write it as 192.168.1.5/24"),
        (checks.read_address, "192.168.1.0/24", "which no board can have"),
        (checks.read_address, "192.168.1.255/24", "which no board can have"),
        (checks.read_address, "127.0.0.1/8", "which no board can have"),
        (checks.read_address, "224.0.0.1/24", "which no board can have"),
        (checks.checked_token_life, "forever", "token life is 'forever', allowed are 10 minutes to 365 days"),
        (checks.checked_token_life, "5m", "allowed are 10 minutes to 365 days"),
        (checks.checked_token_life, "366d", "allowed are 10 minutes to 365 days"),
        (checks.checked_token_life, "-1d", "allowed are 10 minutes to 365 days"),
    ],
)
def test_a_bad_setting_is_one_sentence(check: Callable[[str], object], value: str, sentence: str) -> None:
    with pytest.raises(FlashError) as caught:
        check(value)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("secret", ["hunter2hunter2", "$1$old$hash", "$6$short", "pass word\nline"])
def test_what_is_no_password_hash_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(FlashError, match="is not one of crypt") as caught:
        checks.checked_password_hash(secret)
    assert secret not in str(caught.value)


@pytest.mark.parametrize("secret", ["short", "x" * 64, "pässwörter", "tab\there!"])
def test_what_is_no_wifi_password_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(FlashError, match="the Wi-Fi password has") as caught:
        checks.psk_of("home", secret)
    assert secret not in str(caught.value)


def test_an_rsa_key_is_a_key() -> None:
    public = generate_private_key(public_exponent=65537, key_size=2048).public_key()
    line = public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    assert checks.checked_ssh_key(line) == line


@pytest.mark.skipif(shutil.which("wpa_passphrase") is None, reason="no wpa_passphrase (Debian: wpasupplicant)")
@pytest.mark.parametrize(("ssid", "password"), [("home", "correct horse"), ("it's", "a" * 63), ("ü b", "8charact")])
def test_the_key_is_the_one_that_wpa_supplicant_derives(ssid: str, password: str) -> None:
    printed = subprocess.run(["wpa_passphrase", ssid, password], capture_output=True, text=True, check=True).stdout
    assert f"\tpsk={checks.psk_of(ssid, password)}\n" in printed


def test_a_key_instead_of_a_password_is_taken_as_it_is() -> None:
    assert checks.psk_of("home", "AB" * 32) == "ab" * 32


WIFI = Wifi(ssid="home", psk="0" * 64)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"ssh_keys": (KEY,)}, "is for a user; name one with --user"),
        ({"user": "lab"}, "could not log in, as there is no default password"),
        ({"wifi": (WIFI,)}, "Wi-Fi needs --wifi-country"),
        ({"wifi": (Wifi(ssid="home", psk="x\n"),), "wifi_country": "DE"}, "is not 64 hexadecimal digits"),
        ({"wifi": (WIFI, WIFI), "wifi_country": "DE"}, "the Wi-Fi network home is there 2 times"),
        ({"address": StaticAddress(gateways=("192.168.1.1",))}, "a gateway is for a static address"),
        ({"address": StaticAddress(addresses=("192.168.1.5/24",), on="wifi")}, "is for Wi-Fi, and no network is named"),
        (
            {"address": StaticAddress(addresses=("192.168.1.5/24",), gateways=("192.168.2.1",))},
            "gateway 192.168.2.1 is in none of the networks of 192.168.1.5/24",
        ),
        (
            {"address": StaticAddress(addresses=("10.0.0.5/8",), gateways=("10.0.0.1", "10.0.0.2"))},
            "allowed is one for IPv4 and one for IPv6",
        ),
        ({"address": StaticAddress(addresses=("10.0.0.5/8",), dns=("dns.local",))}, "name server is 'dns.local'"),
        ({"device": {"id": "other"}}, "key `id` of device.toml is the device's own"),
        ({"device": {"thread": 2}}, "unknown key `thread`; did you mean `threads`?"),
        ({"device": {"limits": {"max_temperature_c": 900}}}, "at most 120"),
    ],
)
def test_settings_that_do_not_go_together_are_one_sentence(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(FlashError) as caught:
        checked_settings(CardSettings(hostname="pi-07", **changes))  # type: ignore[arg-type]
    assert sentence in str(caught.value)


def test_both_versions_of_ip_have_their_gateway() -> None:
    address = StaticAddress(
        addresses=("192.168.1.5/24", "fd00::5/64"), gateways=("192.168.1.1", "fe80::1"), dns=("9.9.9.9", "2620:fe::fe")
    )
    assert checked_settings(CardSettings(hostname="pi", address=address)).address == address
