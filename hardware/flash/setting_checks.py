"""Checks each setting of a card when it is made: a mistake costs a sentence here, and a trip to the board later.

Every function returns the value as it goes on the card, or raises FlashError. No message shows a secret.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import hashlib
import ipaddress
import re

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from sparsyedge.edge.errors import FlashError
from sparsyedge.edge.text import duration_s, duration_text, one_line
from sparsyedge.hardware.flash.known_names import COUNTRIES, KEYBOARDS, is_locale, time_zones

__all__ = [
    "checked_country",
    "checked_hostname",
    "checked_keyboard",
    "checked_locale",
    "checked_password_hash",
    "checked_server",
    "checked_ssh_key",
    "checked_ssid",
    "checked_time_zone",
    "checked_token_life",
    "checked_user",
    "hostname_of",
    "psk_of",
    "read_address",
]

SSH_KEY_KINDS = (
    "ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com",
)  # fmt: skip
MAX_KEY_LINE = 8192
# As crypt(5) names them: yescrypt, gost-yescrypt, scrypt, bcrypt, SHA-512 and SHA-256. Older ones are broken.
PASSWORD_HASH = r"\$(y|gy|7|2[aby]|6|5)\$[./A-Za-z0-9$=,]{20,}"
SYSTEM_USERS = frozenset({"root", "sparsyedge", "daemon", "nobody", "sshd", "messagebus", "systemd-network", "mail"})
MIN_TOKEN_LIFE_S, MAX_TOKEN_LIFE_S = 600.0, 365 * 24 * 3600.0


# ---- the system ------------------------------------------------------------------------------------------------------


def checked_hostname(name: str) -> str:
    """One label of RFC 1123."""
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", name):
        raise FlashError(
            f"host name is {_shown(name)}, allowed are 1 to 63 letters, digits and `-`, with a letter or digit first "
            "and last (RFC 1123)"
        )
    return name


def hostname_of(device: str) -> str:
    """The host name of a device that was given none: its id, with what RFC 1123 does not allow as `-`."""
    return checked_hostname(re.sub(r"[_.]", "-", device).strip("-"))


def checked_user(name: str) -> str:
    """A name that useradd takes, and not one of the system's own."""
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,30}", name):
        raise FlashError(
            f"user is {_shown(name)}, allowed are 1 to 31 of a-z, 0-9, `_` and `-`, with a letter or `_` first"
        )
    if name in SYSTEM_USERS:
        raise FlashError(f"user {name} is one of the system's own; choose another name")
    return name


def checked_password_hash(text: str) -> str:
    """A hash as `mkpasswd` or `openssl passwd -6` prints it."""
    if not re.fullmatch(PASSWORD_HASH, text):
        # It may be the password itself, so it is not shown.
        raise FlashError(
            "the password hash is not one of crypt(5), such as $6$SALT$HASH; make it with `openssl passwd -6`"
        )
    return text


def checked_ssh_key(line: str) -> str:
    """A public key as in authorized_keys: kind, key in base64, comment."""
    if "PRIVATE KEY" in line:
        raise FlashError("the ssh key is a private key; name the .pub file beside it, and keep this one secret")
    kind, _, rest = line.strip().partition(" ")
    encoded, _, comment = rest.strip().partition(" ")
    if kind not in SSH_KEY_KINDS or len(line) > MAX_KEY_LINE:
        raise FlashError(f"{_shown(line)} is not a public ssh key; it begins with one of {', '.join(SSH_KEY_KINDS)}")
    try:
        blob = base64.b64decode(encoded, validate=True)
        if blob[4 : 4 + int.from_bytes(blob[:4], "big")] != kind.encode():
            raise ValueError("it says another kind inside")
        if not kind.startswith("sk-"):
            load_ssh_public_key(f"{kind} {encoded}".encode())
    except (binascii.Error, ValueError, UnsupportedAlgorithm) as error:
        raise FlashError(
            f"{_shown(line)} is not a public ssh key ({one_line(str(error), 80)}); copy it again"
        ) from error
    return " ".join(filter(None, (kind, encoded, one_line(comment, 200) if comment else "")))


def checked_locale(name: str) -> str:
    """A locale in UTF-8, with its ending added where it was left out."""
    full = name if "." in name else f"{name}.UTF-8"
    full = re.sub(r"\.(utf-?8)$", ".UTF-8", full, flags=re.IGNORECASE)
    if not is_locale(full):
        raise FlashError(f"locale is {_shown(name)}, which no system has; allowed are such as de_DE.UTF-8 or C.UTF-8")
    return full


def checked_keyboard(name: str) -> str:
    """A layout of XKB, with a variant after a colon if there is one."""
    layout, colon, variant = name.partition(":")
    if layout not in KEYBOARDS or (colon and not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", variant)):
        raise FlashError(
            f"keyboard is {_shown(name)}, allowed is a layout such as us, gb or de, or de:nodeadkeys with its variant"
            f"{_near(layout, KEYBOARDS)}"
        )
    return name


def checked_time_zone(name: str) -> str:
    """A name of the time zone database."""
    known = time_zones()
    if name not in known and (known or not re.fullmatch(r"[A-Za-z0-9_+/-]{1,64}", name)):
        raise FlashError(
            f"time zone is {_shown(name)}, which is not one; allowed are such as Europe/Berlin or UTC"
            f"{_near(name, known)}"
        )
    return name


# ---- the network -----------------------------------------------------------------------------------------------------


def checked_country(code: str) -> str:
    """A country of ISO 3166, in capitals: it decides which channels the radio may use."""
    if code.upper() not in COUNTRIES:
        raise FlashError(f"Wi-Fi country is {_shown(code)}, allowed are two letters of ISO 3166, such as DE or GB")
    return code.upper()


def checked_ssid(name: str) -> str:
    """The name of a Wi-Fi network: at most 32 bytes, none of them a control character."""
    size = len(name.encode())
    if not 1 <= size <= 32:
        raise FlashError(f"the Wi-Fi name has {size} bytes, allowed are 1 to 32")
    if not name.isprintable():
        raise FlashError(f"the Wi-Fi name {_shown(name)} has characters that cannot be printed; type it again")
    return name


def psk_of(ssid: str, password: str) -> str:
    """The key that WPA derives from the password, which itself goes on no card; 64 hexadecimal digits are that key."""
    if re.fullmatch(r"[0-9a-fA-F]{64}", password):
        return password.lower()
    if not 8 <= len(password) <= 63:
        raise FlashError(f"the Wi-Fi password has {len(password)} characters, allowed are 8 to 63; check its file")
    if not (password.isascii() and password.isprintable()):
        raise FlashError("the Wi-Fi password has characters other than printable ASCII, which WPA does not allow")
    return hashlib.pbkdf2_hmac("sha1", password.encode(), ssid.encode(), 4096, 32).hex()


def read_address(text: str) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface:
    """An address of a machine with the length of its network, such as 192.168.1.50/24."""
    try:
        address = ipaddress.ip_interface(text)
    except ValueError as error:
        raise FlashError(
            f"address is {_shown(text)}, which is not one; allowed are such as 192.168.1.50/24 or fd00::50/64"
        ) from error
    network = address.network
    if "/" not in text or network.prefixlen == 0:
        raise FlashError(
            f"address is {_shown(text)}, without the length of its network; write it as {text.split('/')[0]}/24"
        )
    ends = {network.network_address, network.broadcast_address} if network.num_addresses > 2 else set()
    if (
        address.is_loopback
        or address.is_multicast
        or address.is_unspecified
        or (address.version == 4 and address.ip in ends)
    ):
        raise FlashError(f"address is {_shown(text)}, which no board can have; take one between the ends of {network}")
    return address


def checked_server(text: str, what: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address of another machine: a gateway or a name server."""
    try:
        return ipaddress.ip_address(text)
    except ValueError as error:
        raise FlashError(f"{what} is {_shown(text)}, allowed is an address such as 192.168.1.1 or fd00::1") from error


def checked_token_life(text: str) -> str:
    """A duration that the authority accepts."""
    seconds = duration_s(text)
    if seconds is None or not MIN_TOKEN_LIFE_S <= seconds <= MAX_TOKEN_LIFE_S:
        raise FlashError(
            f"token life is {_shown(text)}, allowed are {duration_text(MIN_TOKEN_LIFE_S)} to "
            f"{duration_text(MAX_TOKEN_LIFE_S)}, such as 12h or 30d"
        )
    return text


def _shown(text: str) -> str:
    return repr(one_line(text, 60))


def _near(name: str, known: frozenset[str] | set[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""
