"""Definitions of the values of ``format`` that can be decided from the text.

Libraries disagree about dates, and most accept 30 February. So these patterns follow the definitions that JSON Schema
refers to (2020-12, Validation, section 7.3): strategies compile them instead of the format, and finished texts are
validated with them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from guideway.json_schema.walking import Schema, changed

__all__ = ["FORMATS", "has_format", "with_patterns"]


def _or_nothing(pattern: str) -> str:
    """Return an expression for `pattern` or the empty text. Avoids ``?``, with which xgrammar accepts parts of a group
    that contains a repetition."""
    return f"(?:{pattern}|)"


def _date() -> str:
    """Return the pattern of RFC 3339, `full-date`; days of a month as in appendix C."""
    long, short = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])", "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    years_by_4 = "(?:0[48]|[2468][048]|[13579][26])"
    leap = f"(?:[0-9]{{2}}{years_by_4}|(?:00|{years_by_4})00)"
    return f"(?:[0-9]{{4}}-(?:{long}|{short}|02-(?:0[1-9]|1[0-9]|2[0-8]))|{leap}-02-29)"


def _time() -> str:
    """Return the pattern of RFC 3339, `full-time`, without leap seconds."""
    hour, up_to_59 = "(?:[01][0-9]|2[0-3])", "[0-5][0-9]"
    return rf"{hour}:{up_to_59}:{up_to_59}{_or_nothing('[.][0-9]+')}(?:[Zz]|[+-]{hour}:{up_to_59})"


def _duration() -> str:
    """Return the pattern of RFC 3339, appendix A: a unit is followed by the next smaller one or by none."""
    seconds = "[0-9]+S"
    minutes = f"[0-9]+M{_or_nothing(seconds)}"
    hours = f"[0-9]+H{_or_nothing(minutes)}"
    time = f"T(?:{hours}|{minutes}|{seconds})"
    days = "[0-9]+D"
    months = f"[0-9]+M{_or_nothing(days)}"
    years = f"[0-9]+Y{_or_nothing(months)}"
    return f"P(?:(?:{days}|{months}|{years}){_or_nothing(time)}|{time}|[0-9]+W)"


def _email() -> str:
    """Return the pattern of RFC 5321, `Mailbox`, without quoted names and addresses in brackets."""
    atom, domain = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+", f"[A-Za-z0-9]{_or_nothing('[A-Za-z0-9-]*[A-Za-z0-9]')}"
    return rf"{atom}(?:[.]{atom})*@{domain}(?:[.]{domain})*"


def _hostname() -> str:
    """Return the pattern of RFC 1123, section 2.1, for few, short labels without consecutive hyphens."""
    label = "[A-Za-z0-9](?:-?[A-Za-z0-9]){0,24}"
    return f"(?:{label}[.]){{0,4}}{label}"


def _ipv4() -> str:
    """Return the pattern of RFC 2673, section 3.2."""
    byte = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
    return f"(?:{byte}[.]){{3}}{byte}"


def _ipv6() -> str:
    """Return the pattern of RFC 4291, section 2.2, structured as `IPv6address` in RFC 3986."""
    group = "[0-9a-fA-F]{1,4}"
    last = f"(?:{group}:{group}|{_ipv4()})"
    begun = [_or_nothing(f"(?:{group}:){{0,{n}}}{group}") for n in range(7)]
    after = [*(f"(?:{group}:){{{n}}}{last}" for n in range(4, 0, -1)), last, group, ""]
    elided = [f"{before}::{rest}" for before, rest in zip(begun, after, strict=True)]
    return f"(?:(?:{group}:){{6}}{last}|::(?:{group}:){{5}}{last}|{'|'.join(elided)})"


def _uri(*, reference: bool) -> str:
    """Return the pattern of RFC 3986, `URI` or `URI-reference`, without addresses in brackets."""
    own, encoded = r"A-Za-z0-9\-._~!$&'()*+,;=", "%[0-9a-fA-F]{2}"
    character, name = f"(?:[{own}:@]|{encoded})", f"(?:[{own}]|{encoded})"
    more = f"(?:/{character}*)*"
    user = _or_nothing(f"(?:[{own}:]|{encoded})*@")
    authority = f"//{user}{name}*{_or_nothing(':[0-9]*')}{more}"
    absolute = f"/{_or_nothing(f'{character}+{more}')}"
    end = "".join(_or_nothing(f"[{mark}](?:{character}|[/?])*") for mark in "?#")
    uri = f"[A-Za-z][A-Za-z0-9+.-]*:(?:{authority}|{absolute}|{character}+{more}|){end}"
    without_colon = f"(?:[{own}@]|{encoded})+"
    return f"(?:{uri}|(?:{authority}|{absolute}|{without_colon}{more}|){end})" if reference else uri


FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "date": _date(),
        "date-time": f"{_date()}[Tt]{_time()}",
        "duration": _duration(),
        "email": _email(),
        "hostname": _hostname(),
        "ipv4": _ipv4(),
        "ipv6": _ipv6(),
        "time": _time(),
        "uri": _uri(reference=False),
        "uri-reference": _uri(reference=True),
        # RFC 4122
        "uuid": "[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
    }
)
"""Regular expressions of formats, for the whole text. Every matching text has the format, but some texts of a format
do not match: leap seconds in ``time`` and ``date-time``, quoted names and addresses in brackets in ``email``, addresses
in brackets in ``uri`` and ``uri-reference``, and in ``hostname`` more than five labels, labels of more than 25 letters
and digits, and consecutive hyphens. No matching character needs an escape in JSON."""

_NAMES = frozenset(f"format:{name}" for name in FORMATS)
_COMPILED = {name: re.compile(pattern) for name, pattern in FORMATS.items()}
_UNDECIDED = {
    name: re.compile(mark) for name, mark in {"email": r'["\[]', "uri": r"\[", "uri-reference": r"\["}.items()
}
"""A pattern that is found in every text that has the format but does not match its expression."""
_LEAP_SECOND = re.compile(r"(?:.*[Tt])?([0-9]{2}):([0-9]{2}):(60)(?:\.[0-9]+)?(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))")
_LONG_LABEL = re.compile("[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


def has_format(name: str, text: str) -> bool | None:
    """Return whether `text` has the format `name`; None if that is unknown, for other formats and for rare texts."""
    if name not in FORMATS:
        return None
    if _COMPILED[name].fullmatch(text):
        return True
    if name == "hostname":
        return _is_hostname(text)
    if name in ("time", "date-time"):
        return _has_leap_second(name, text)
    return None if name in _UNDECIDED and _UNDECIDED[name].search(text) else False


def _is_hostname(text: str) -> bool | None:
    labels = text.split(".")
    if len(text) > 253 or not all(map(_LONG_LABEL.fullmatch, labels)):
        return False
    reserved = [label for label in labels if label[2:4] == "--"]
    if all(label[:2].lower() == "xn" for label in reserved):
        return None if reserved else True  # RFC 5891 defines which of these are valid
    return False


def _has_leap_second(name: str, text: str) -> bool:
    """Return whether `text` has a valid leap second (RFC 3339, appendix D): the last second of a day in UTC."""
    found = _LEAP_SECOND.fullmatch(text)
    if found is None or not _COMPILED[name].fullmatch(f"{text[: found.start(3)]}59{text[found.end(3) :]}"):
        return False
    hours, minutes, _, sign, hours_off, minutes_off = found.groups()
    offset = int(f"{sign}1") * (60 * int(hours_off) + int(minutes_off)) if sign else 0
    return (60 * int(hours) + int(minutes) - offset) % (24 * 60) == 24 * 60 - 1


def with_patterns(schema: Schema, names: frozenset[str]) -> Schema:
    """Return a copy of a checked schema with a pattern instead of each format in `FORMATS`; if there is another
    pattern, in ``allOf``. Returns the schema itself if `names`, the result of `guideway.json_schema.keywords` for it,
    has no such format."""
    if names.isdisjoint(_NAMES):
        return schema
    return changed(schema, _with_pattern)


def _with_pattern(node: dict[str, Any]) -> dict[str, Any]:
    if node.get("format") not in FORMATS or not ("type" not in node or "string" in node["type"]):
        return node
    pattern = {"pattern": f"^(?:{FORMATS[node.pop('format')]})$"}
    return node | ({"allOf": [*node.get("allOf", ()), pattern]} if "pattern" in node else pattern)
