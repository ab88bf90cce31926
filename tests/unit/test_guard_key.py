"""Composed keys: they cannot collide, and can be parsed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom import ArgumentTypeError, ArgumentValueError, GuardKey

parts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=12)


@pytest.mark.req("KOAN-005", "KOAN-030", "C-13")
def test_an_ordinary_key_reads_as_its_parts() -> None:
    assert str(GuardKey("shop", "billing", "paid", "e-1")) == "shop:billing:paid:e-1"


@pytest.mark.req("C-13")
@given(st.tuples(parts, parts, parts, parts), st.tuples(parts, parts, parts, parts))
def test_keys_are_equal_only_if_their_parts_are(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    first, second = GuardKey(*one), GuardKey(*other)  # type: ignore[arg-type]
    assert (str(first) == str(second)) == (one == other)
    assert GuardKey.parse(str(first)) == first


@pytest.mark.req("C-13")
def test_a_separator_in_a_part_makes_no_other_key() -> None:
    assert str(GuardKey("a:b", "c", "d/e", "100%")) == "a%3Ab:c:d%2Fe:100%25"


@pytest.mark.req("C-13")
def test_a_long_key_is_refused_or_hashed() -> None:
    with pytest.raises(ArgumentValueError, match="long_ids"):
        GuardKey("a", "b", "c", "x" * 300)
    one = GuardKey("a", "b", "c", "x" * 300, long_ids="sha256")
    other = GuardKey("a", "b", "c", "x" * 301, long_ids="sha256")
    assert len(str(one)) < 255
    assert str(one) != str(other)


@pytest.mark.req("KOAN-006", "KOAN-007")
def test_the_header_comes_before_the_message_id() -> None:
    headers = {"Idempotency-Key": "h"}
    assert GuardKey.of_delivery("a", "b", "c", headers=headers, message_id="m").id == "h"
    assert GuardKey.of_delivery("a", "b", "c", headers={}, message_id="m").id == "m"
    with pytest.raises(ArgumentValueError, match="neither"):
        GuardKey.of_delivery("a", "b", "c", headers=None, message_id=None)


@pytest.mark.parametrize("bad", ["", None, 5, "\x00"])
def test_a_bad_part_is_refused(bad: object) -> None:
    with pytest.raises((ArgumentTypeError, ArgumentValueError)):
        GuardKey("a", "b", "c", bad)  # type: ignore[arg-type]


def test_other_texts_are_not_parsed() -> None:
    with pytest.raises(ArgumentValueError, match="four parts"):
        GuardKey.parse("a:b")
