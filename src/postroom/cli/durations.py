"""Durations as people write them: 10s, 5m, 2h, 30d."""

from __future__ import annotations

import re
from datetime import timedelta

import typer

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_FORM = re.compile(rf"(\d{{1,9}})([{''.join(_UNITS)}])", re.ASCII)


def parse(text: str) -> timedelta:
    match = _FORM.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a duration; write 10s, 5m, 2h or 30d")
    number, unit = match.groups()
    return timedelta(**{_UNITS[unit]: int(number)})
