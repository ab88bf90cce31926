"""Credentials are in no repr: a debugger, a log of local variables and an error tracker print it."""

from __future__ import annotations

import pytest

from postroom._stores.redis.url import _read
from postroom._stores.sql.postgres.url import _settings


@pytest.mark.parametrize("url", ["ann:s3cret@h/db", "h/db?user=ann&password=s3cret"])
def test_the_settings_of_a_pool(url: str) -> None:
    _, settings = _settings(url)
    assert "s3cret" in settings.url
    assert "s3cret" not in repr(settings)


@pytest.mark.parametrize(
    ("scheme", "rest"),
    [
        ("redis", "ann:s3cret@h/0"),
        ("redis", "h/0?password=s3cret"),
        ("redis+cluster", "ann:s3cret@h"),
        ("redis+sentinel", "ann:s3cret@h/service"),
        ("unix", "ann:s3cret@/run/redis.sock"),
    ],
)
def test_the_place_of_a_redis(scheme: str, rest: str) -> None:
    place, *_ = _read(scheme, rest)
    assert "s3cret" in str(tuple(place))
    assert "s3cret" not in repr(place)
