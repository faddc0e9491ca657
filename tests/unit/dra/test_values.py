"""Values are made valid or left out: one bad value would cost the node all its devices."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from node_agent.dra.values import MOST_NAMES, Value, count, flag, known, number, size, text, version

# Written down from the API's own rules, not shared with the code.
SEMVER = re.compile(
    r"^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(-(0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?\Z"
)
SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18} | {
    f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", start=1)
}


def quantity(text: str) -> int:
    """A quantity's number, read as Kubernetes reads it."""
    found = re.fullmatch(r"(\d+)([A-Za-z]*)", text)
    assert found is not None
    factor: int = SUFFIXES[found[2]]
    return int(found[1]) * factor


def test_a_short_text_is_kept_as_it_is() -> None:
    assert text("NVIDIA H200") == {"string": "NVIDIA H200"}


def test_a_long_text_is_cut_to_64_bytes() -> None:
    assert text("x" * 67) == {"string": "x" * 64}


def test_a_cut_never_goes_through_a_character() -> None:
    assert text("x" * 63 + "é") == {"string": "x" * 63}
    assert text("x" * 62 + "é") == {"string": "x" * 62 + "é"}


@pytest.mark.parametrize("nothing", [None, "", "   ", "\udcff"])
def test_a_text_of_which_nothing_is_left_is_no_attribute(nothing: str | None) -> None:
    assert text(nothing) is None


@given(st.text(st.characters()))
@example("\ud800" + "é" * 40)
def test_any_text_is_valid_or_left_out(given_text: str) -> None:
    value = text(given_text)
    if value is not None:
        kept = value["string"]
        assert isinstance(kept, str) and 0 < len(kept.encode()) <= 64


@pytest.mark.parametrize(
    ("given_version", "strict"),
    [
        ("580.65.06", "580.65.6"),
        ("570.124.06", "570.124.6"),
        ("12.8", "12.8.0"),
        ("9.0", "9.0.0"),
        ("13", "13.0.0"),
        ("0.0", "0.0.0"),
        ("580.95.05 ", "580.95.5"),
        ("1.2.3", "1.2.3"),
        ("1.2.3-rc.1+build.007", "1.2.3-rc.1+build.007"),
    ],
)
def test_a_version_is_brought_into_the_strict_form(given_version: str, strict: str) -> None:
    assert version(given_version) == {"version": strict}


@pytest.mark.parametrize(
    "hopeless", [None, "", "unknown", "1.2.3.4", "1..2", "1.2.x", "v", "1.2.3-01", "٣.١.٢", "1.2.3-" + "a" * 60]
)
def test_a_version_that_cannot_be_fixed_is_left_out(hopeless: str | None) -> None:
    assert version(hopeless) is None


@given(st.text(max_size=80) | st.from_regex(r"\A[0-9v.+-]{1,70}\Z"))
def test_any_version_is_strict_or_left_out(given_version: str) -> None:
    value = version(given_version)
    if value is not None:
        strict = value["version"]
        assert isinstance(strict, str) and SEMVER.match(strict) and len(strict) <= 64


@pytest.mark.parametrize(("value", "kept"), [(0, True), (-1, True), (2**63 - 1, True), (2**63, False), (None, False)])
def test_a_number_has_to_fit_64_bits(value: int | None, kept: bool) -> None:
    assert number(value) == ({"int": value} if kept else None)


def test_a_flag_that_is_off_is_not_one_that_is_unknown() -> None:
    assert (flag(False), flag(True), flag(None)) == ({"bool": False}, {"bool": True}, None)


@pytest.mark.parametrize("name", ["nvlink-domain", "1st", "a.b", "", "x" * 33, "Domain.example/x", "a/b/c", "/x", "d/"])
def test_an_attribute_with_a_name_that_the_api_refuses_is_left_out(name: str) -> None:
    good: dict[str, Value | None] = {"fine": text("yes"), name: text("no")}
    assert known(good) == {"fine": {"string": "yes"}}


@pytest.mark.parametrize("name", ["uuid", "_x", "resource.kubernetes.io/numaNode", "x" * 32])
def test_an_attribute_with_a_good_name_stays(name: str) -> None:
    assert known({name: number(1)}) == {name: {"int": 1}}


def test_there_are_no_more_attributes_than_the_api_takes_and_the_first_ones_stay() -> None:
    many: dict[str, Value | None] = {f"a{i}": number(i) for i in range(40)}
    assert list(known(many)) == [f"a{i}" for i in range(MOST_NAMES)]
    assert list(known(many, 3)) == ["a0", "a1", "a2"]


@pytest.mark.parametrize(
    ("bytes_", "spelled"),
    [
        (143771 << 20, "143771Mi"),
        (80 << 30, "80Gi"),
        (81920 << 20, "80Gi"),
        (1024, "1Ki"),
        (512, "512"),
        (10**6, "1M"),
        (1025, "1025"),
        (1 << 60, "1Ei"),
    ],
)
def test_bytes_are_spelled_as_the_api_server_spells_them(bytes_: int, spelled: str) -> None:
    assert size(bytes_) == spelled


@pytest.mark.parametrize(("value", "spelled"), [(132, "132"), (1000, "1k"), (2048, "2048"), (0, "0"), (1, "1")])
def test_counts_are_spelled_as_the_api_server_spells_them(value: int, spelled: str) -> None:
    assert count(value) == spelled


@given(st.integers(min_value=0, max_value=2**63 - 1) | st.integers(0, 2**30).map(lambda n: n << 20))
def test_a_quantity_says_the_number_exactly(value: int) -> None:
    assert quantity(size(value)) == quantity(count(value)) == value
