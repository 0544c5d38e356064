"""Names that systems know, to find a typing error before a card is made: countries, keyboards, locales, time zones."""

from __future__ import annotations

import locale
import re
import zoneinfo

__all__ = ["COUNTRIES", "KEYBOARDS", "is_locale", "time_zones"]

# ISO 3166-1, as the regulatory database of Linux's radios uses it.
_COUNTRIES = """
AD AE AF AG AI AL AM AO AQ AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BL BM BN BO BQ BR BS BT BV BW BY BZ CA CC
CD CF CG CH CI CK CL CM CN CO CR CU CV CW CX CY CZ DE DJ DK DM DO DZ EC EE EG EH ER ES ET FI FJ FK FM FO FR GA GB GD
GE GF GG GH GI GL GM GN GP GQ GR GS GT GU GW GY HK HM HN HR HT HU ID IE IL IM IN IO IQ IR IS IT JE JM JO JP KE KG KH
KI KM KN KP KR KW KY KZ LA LB LC LI LK LR LS LT LU LV LY MA MC MD ME MF MG MH MK ML MM MN MO MP MQ MR MS MT MU MV MW
MX MY MZ NA NC NE NF NG NI NL NO NP NR NU NZ OM PA PE PF PG PH PK PL PM PN PR PS PT PW PY QA RE RO RS RU RW SA SB SC
SD SE SG SH SI SJ SK SL SM SN SO SR SS ST SV SX SY SZ TC TD TF TG TH TJ TK TL TM TN TO TR TT TV TW TZ UA UG UM US UY
UZ VA VC VE VG VI VN VU WF WS YE YT ZA ZM ZW
"""
COUNTRIES = frozenset(_COUNTRIES.split())
# The layouts of xkeyboard-config, which Debian's keyboard-configuration offers.
_KEYBOARDS = """
us af ara al am at au az by be bd in ba br bg dz ma cm mm ca cd cn hr cz dk nl bt ee ir iq fo fi fr gh gn ge de gr hu
is il it jp kg kh kz la latam lt lv mao me mk mt mn no pl pt ro ru rs si sk es se ch sy tj lk th tr tw ua gb uz vn kr
ie pk mv za epo np ng et sn brai tm ml tz tg ke bw ph md id jv my
"""
KEYBOARDS = frozenset(_KEYBOARDS.split())


def time_zones() -> set[str]:
    """The time zones that this machine knows; empty if it has no database of them."""
    return {name for name in zoneinfo.available_timezones() if not name.startswith(("posix/", "right/"))}


def is_locale(name: str) -> bool:
    """Whether a system has a UTF-8 locale of this name: C.UTF-8, or a language and a country that go together."""
    if name == "C.UTF-8":
        return True
    found = re.fullmatch(r"([a-z]{2,3}_[A-Z]{2})\.UTF-8", name)
    return found is not None and found[1].lower() in locale.locale_alias
