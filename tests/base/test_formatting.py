"""Bytes as people write them."""

from __future__ import annotations

import pytest

from sublet.base.errors import SubletError
from sublet.base.formatting import count_with_noun, human, parse_bytes


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1152, "1.13 KiB"),
        (1536, "1.5 KiB"),
        (9_637_824, "9.19 MiB"),
        (100 * 1024, "100 KiB"),
        (1024**2 - 1, "1 MiB"),
        (10 * 1024**2 - 1, "10 MiB"),
        (1023 * 1024, "1023 KiB"),
        (3 << 30, "3 GiB"),
        (1 << 62, "4 EiB"),
        (1 << 75, "32768 EiB"),
        (-1536, "-1.5 KiB"),
    ],
)
def test_human(nbytes: int, text: str) -> None:
    assert human(nbytes) == text


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("1_048_576", 1 << 20),
        ("256KiB", 256 * 1024),
        ("256 kib", 256 * 1024),
        ("1.5MiB", 3 << 19),
        ("2MB", 2_000_000),
        ("64B", 64),
        ("256K", 256 * 1024),
        ("1.5m", 3 << 19),
        ("2 G", 2 << 30),
        (" 1 GiB ", 1 << 30),
        ("0.1KiB", 102),
        ("1.000000000000000000001KB", 1000),
    ],
)
def test_parse_bytes(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize(
    "text", ["", "KiB", "-1", "1e6", "1,5MiB", "0x10", "nan", "1.", "1" * 5000, "1 Ki B", "٣", "K"]
)
def test_what_is_not_a_number_of_bytes_is_told_so(text: str) -> None:
    with pytest.raises(SubletError, match="is not a number of bytes"):
        parse_bytes(text)


def test_an_unknown_unit_names_the_known_ones() -> None:
    with pytest.raises(SubletError, match=r"'12 furlongs' has the unknown unit 'furlongs': use one of B, KiB, MiB"):
        parse_bytes("12 furlongs")


@pytest.mark.parametrize("nbytes", [1, 1000, 1024, 5 << 20, 7 << 30])
def test_what_is_written_exactly_is_read_back(nbytes: int) -> None:
    assert parse_bytes(human(nbytes).replace(" ", "")) == nbytes


def test_a_number_agrees_with_its_noun() -> None:
    assert [count_with_noun(number, "node") for number in (0, 1, 2, 1234)] == [
        "0 nodes",
        "1 node",
        "2 nodes",
        "1,234 nodes",
    ]
