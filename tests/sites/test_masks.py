"""Masks cancel exactly, hide, and are never used twice; the oracle is Python's own integers and fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auqadmm.errors import InputError
from auqadmm.sites.keys import SecretKey
from auqadmm.sites.masks import Masker, add, encode, negative, total, unmasked

WORD = 1 << 64
numbers = st.floats(-(2.0**53), 2.0**53, exclude_min=True, exclude_max=True)
integers = st.integers(-(1 << 127), (1 << 127) - 1)


def limbs(values: list[int]) -> np.ndarray:
    return np.array([[v % WORD, (v >> 64) % WORD] for v in values], dtype=np.uint64).reshape(-1, 2)


def integer(row: np.ndarray) -> int:
    value = int(row[0]) + (int(row[1]) << 64)
    return value - (1 << 128) if value >> 127 else value


def keys(count: int) -> dict[str, SecretKey]:
    return {f"s{k}": SecretKey(f"s{k}", bytes([k + 1]) * 32, bytes([k + 101]) * 32) for k in range(count)}


def met(count: int, run: str = "r") -> dict[str, Masker]:
    own = keys(count)
    roster = {name: key.public for name, key in own.items()}
    out = {name: Masker(key, roster, run, name) for name, key in own.items()}
    for masker in out.values():
        masker.meet({name: other.hello for name, other in out.items()})
    return out


@given(st.lists(numbers, min_size=1, max_size=20))
def test_encoding_is_the_nearest_integer(values: list[float]) -> None:
    expected = [round(Fraction(x) * WORD) for x in values]  # ties to even, as here
    assert [integer(row) for row in encode(np.array(values))] == expected


@given(st.lists(integers, min_size=1, max_size=20), st.integers(0, 116))
def test_decoding_rounds_once(values: list[int], fraction: int) -> None:
    assert unmasked(limbs(values), fraction).tolist() == [float(Fraction(v, 1 << fraction)) for v in values]


@pytest.mark.parametrize("high", [(1 << 63) - 1, (1 << 53) + 1, (1 << 10) - 1, 1, 0])
@pytest.mark.parametrize("low", [0, 1, WORD - 1, 1 << 63, (1 << 63) + 1, 1 << 10, (1 << 11) - 1])
def test_decoding_at_the_edges(high: int, low: int) -> None:
    value = (high << 64) + low
    assert unmasked(limbs([value, -value])).tolist() == [float(Fraction(value, WORD)), float(Fraction(-value, WORD))]


@given(st.lists(st.tuples(integers, integers), min_size=1, max_size=10))
def test_addition_is_that_of_integers(pairs: list[tuple[int, int]]) -> None:
    a, b = limbs([x for x, _ in pairs]), limbs([y for _, y in pairs])
    assert add(a, b).tolist() == limbs([(x + y) % (1 << 128) for x, y in pairs]).tolist()
    assert negative(a).tolist() == limbs([-x % (1 << 128) for x, _ in pairs]).tolist()


@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=5))
def test_masks_cancel_exactly_in_every_order(rows: list[tuple[float, ...]]) -> None:
    columns = np.array(rows).T
    maskers = met(3)
    masked = [m.mask(1, "x", column) for m, column in zip(maskers.values(), columns, strict=True)]
    plain = total(encode(column) for column in columns)
    for order in permutations(masked):
        assert total(order).tobytes() == plain.tobytes()
    exact = [Fraction(sum(round(Fraction(x) * WORD) for x in row), WORD) for row in rows]
    assert unmasked(plain).tolist() == [float(x) for x in exact]


def test_ten_sites_of_five_thousand_numbers(rng: np.random.Generator) -> None:
    maskers = met(10)
    values = {name: rng.standard_normal(5000) * 10.0 ** rng.uniform(-6, 6, 5000) for name in maskers}
    masked = {name: m.mask(3, "hessian", values[name]) for name, m in maskers.items()}
    assert {x.nbytes for x in masked.values()} == {80_000}
    found = unmasked(total(masked.values()))
    exact = np.array([float(sum(map(Fraction, column))) for column in zip(*map(np.ndarray.tolist, values.values()))])  # noqa: B905
    assert np.all(np.abs(found - exact) <= 2e-16 * np.maximum(1, np.abs(exact)))


def test_what_one_site_sends_looks_like_noise() -> None:
    masker = met(3)["s1"]
    bits = np.unpackbits(masker.mask(1, "x", np.zeros(20_000)).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 4 * 0.5 / bits.size**0.5
    without_one = total(m.mask(2, "x", np.zeros(8)) for name, m in met(3).items() if name != "s1")
    assert np.count_nonzero(without_one) == 16


def test_a_mask_is_never_used_twice() -> None:
    masker = met(2)["s0"]
    x = np.ones(3)
    first = masker.mask(1, "x", x)
    assert (masker.mask(1, "y", x) != first).all()
    assert (masker.mask(2, "x", x) != first).all()
    for number, label in ((2, "x"), (1, "z")):
        with pytest.raises(InputError, match="was used before"):
            masker.mask(number, label, x)
    # a coordinator that gives two runs one name learns nothing from the difference
    assert (met(2)["s0"].mask(1, "x", x) != first).all()


def test_a_refused_value_uses_no_mask() -> None:
    masker = met(2)["s0"]
    with pytest.raises(InputError, match=r"number 1 of 3 is not finite; nothing is sent"):
        masker.mask(1, "x", np.array([1.0, np.nan, np.inf]))
    masker.mask(1, "x", np.ones(3))


@pytest.mark.parametrize(
    ("bad", "says"), [(np.inf, "not finite"), (2.0**53, "too large"), (-1e300, "below 9.01e[+]15")]
)
def test_numbers_that_do_not_fit_are_named_by_place(bad: float, says: str) -> None:
    with pytest.raises(InputError, match=rf"number 2 of 4 is .*{says}"):
        encode(np.array([0.0, 1.0, bad, np.nan]))


def test_meetings_of_the_wrong_sites_are_refused() -> None:
    own = keys(3)
    roster = {name: key.public for name, key in own.items()}
    masker = Masker(own["s0"], roster, "r", "s0")
    with pytest.raises(InputError, match="have not met yet"):
        masker.mask(1, "x", np.ones(1))
    hellos = {name: Masker(key, roster, "r", name).hello for name, key in own.items()}
    with pytest.raises(InputError, match="'s0'"):  # not what this site itself drew
        masker.meet(hellos)
    hellos["s0"] = masker.hello
    with pytest.raises(InputError, match="'s2'"):
        masker.meet({name: hello for name, hello in hellos.items() if name != "s2"})
    for nonsense in (bytes(32), b"short"):
        with pytest.raises(InputError, match="'s1' sent to agree on masks is no key"):
            masker.meet(hellos | {"s1": nonsense})
    masker.meet(hellos)
    with pytest.raises(InputError, match="met already"):
        masker.meet(hellos)
    with pytest.raises(InputError, match="no other site"):
        Masker(own["s0"], {"s0": own["s0"].public}, "r", "s0")
    with pytest.raises(InputError, match="key of 's0'"):
        Masker(own["s0"], roster, "r", "s1")


def test_a_coordinator_that_draws_for_others_spoils_the_sum_and_reads_nothing() -> None:
    """Hellos are not signed: the agreement of lasting keys is in every mask, and the coordinator has no such key."""
    own = keys(2)
    roster = {name: key.public for name, key in own.items()}
    site = Masker(own["s0"], roster, "r", "s0")
    evil = SecretKey("s1", bytes([7]) * 32, bytes([8]) * 32)
    played = Masker(evil, {"s0": own["s0"].public}, "r", "s1")
    site.meet({"s0": site.hello, "s1": played.hello})
    played.meet({"s0": site.hello, "s1": played.hello})
    summed = unmasked(add(site.mask(1, "x", np.ones(4)), played.mask(1, "x", np.zeros(4))))
    assert not np.any(np.isclose(summed, 1.0))


def test_sums_of_unequal_lengths(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="2 and 3 numbers"):
        total([encode(np.ones(2)), encode(np.ones(3))])
    with pytest.raises(InputError, match="no sites"):
        total([])
