"""Arrays that are sent as text: PostgreSQL reads the same values."""

from __future__ import annotations

import psycopg
import pytest

from postroom._stores.sql.postgres.arrays import NULL, array_text, text_array
from tests.postgres import server

TEXTS = {
    "one": ["a"],
    "two": ["a", "b"],
    "quotes": ['"', 'a"b', '"",""'],
    "the seam alone": ['","'],
    "backslashes": ["\\", "a\\b", '\\"', "\\\\"],
    "what arrays are written with": ["{", "}", "{}", ",", " a ", "a,b", "{a,b}"],
    "words of arrays": ["NULL", "null", "t"],
    "other scripts and lines": ["naïve Ω 漢字 🧾 שלום", "a\nb\tc"],
}


def read(kind: str, text: str) -> object:
    with psycopg.connect(server()) as connection:
        row = connection.execute(f"SELECT %s::text::{kind}[]".encode(), [text]).fetchone()
        assert row is not None
        return row[0]


@pytest.mark.parametrize("values", TEXTS.values(), ids=TEXTS)
def test_texts(values: list[str]) -> None:
    assert read("text", text_array(values)) == values


def test_numbers_and_constants() -> None:
    assert read("bigint", array_text([1, NULL, -(2**63)])) == [1, None, -(2**63)]
    assert read("bigint", array_text([])) == []
