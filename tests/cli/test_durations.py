"""Durations as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
import typer

from postroom.cli.durations import parse


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("0s", timedelta()),
        ("10s", timedelta(seconds=10)),
        ("5m", timedelta(minutes=5)),
        ("2h", timedelta(hours=2)),
        ("30d", timedelta(days=30)),
        ("999999999d", timedelta(days=999_999_999)),
    ],
)
def test_a_number_and_a_unit(text: str, duration: timedelta) -> None:
    assert parse(text) == duration


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1.5h", "1 d", "1D", "2w", "1d12h", "٣d", "9999999999d"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="write 10s, 5m, 2h or 30d"):
        parse(text)
