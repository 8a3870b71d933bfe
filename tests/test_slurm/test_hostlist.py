from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm.hostlist import HostlistError, compress, expand

names = st.from_regex(r"[a-z][a-z0-9.-]{0,6}[0-9]{0,4}", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("(null)", ()),
        ("n1", ("n1",)),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("n[1-2,07],login", ("n1", "n2", "n07", "login")),
        ("n[08-10]", ("n08", "n09", "n10")),
        ("n[9-11]", ("n9", "n10", "n11")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("p4d-[1-2]-ib", ("p4d-1-ib", "p4d-2-ib")),
        ("a,b,a", ("a", "b", "a")),
    ],
)
def test_expands_what_slurm_writes(text: str, hosts: tuple[str, ...]) -> None:
    assert expand(text) == hosts


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ((), ""),
        (("n1", "n2", "n3", "n5"), "n[1-3,5]"),
        (("n08", "n09", "n10"), "n[08-10]"),
        (("n9", "n10", "n011"), "n[9-10,011]"),
        (("n3", "n2"), "n[3,2]"),
        (("login", "n1"), "login,n1"),
        (("r1n1", "r1n2", "r2n1"), "r1n[1-2],r2n1"),
    ],
)
def test_compresses_as_slurm_does(hosts: tuple[str, ...], text: str) -> None:
    assert compress(hosts) == text


@given(st.lists(names, max_size=40))
def test_compressed_names_expand_to_the_same_names_in_the_same_order(hosts: list[str]) -> None:
    assert expand(compress(hosts)) == tuple(hosts)


@given(st.integers(0, 10**6), st.integers(0, 300), st.integers(1, 8))
def test_a_range_of_any_width_comes_back(first: int, count: int, width: int) -> None:
    hosts = tuple(f"n{number:0{width}}" for number in range(first, first + count))
    assert expand(compress(hosts)) == hosts


@given(st.text(alphabet="n019[],- ", max_size=12))
def test_any_text_expands_or_is_refused_in_one_line(text: str) -> None:
    try:
        hosts = expand(text)
    except HostlistError as error:
        assert error.text == text and "\n" not in str(error)
    else:
        assert expand(compress(hosts)) == hosts


@pytest.mark.parametrize(
    "text",
    [
        "n[1-999999999999]",
        "n[0-65536]",
        "n[1-300][1-300]",
        "[0-9]" * 200,
        "n" + "[0-99999]" * 50,
        ",".join(["n[1-60000]"] * 2),
        "n[1-9999999999999999999999]",
    ],
)
def test_a_list_too_long_is_refused_before_it_takes_memory(text: str) -> None:
    with pytest.raises(HostlistError):
        expand(text)


@pytest.mark.parametrize(
    "text", ["n[1-", "n]1", "n[]", "n[3-1]", "n[a-b]", "n[[1]]", ",n1", "n1,", "n1,,n2", "n 1", "n[-1]"]
)
def test_a_malformed_list_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(HostlistError, match="expected names such as"):
        expand(text)


@pytest.mark.parametrize("host", ["", "a,b", "n[1]", "a b", "a\nb"])
def test_what_is_no_host_name_is_not_compressed(host: str) -> None:
    with pytest.raises(HostlistError, match="not a host name"):
        compress([host])
