"""Columns that are probably not what they would be used as: ids, dates written as text, one label in two spellings.

A model would take them without complaint: an id becomes one feature per patient and is published with the model, and
"yes" and "Yes " become two classes. So they are refused, and the sentence says how to insist.

    of one file     surely an id, whatever the other files hold: its values are not even sent
    of all files    hardly two rows per text when all files are counted together; the same text in two spellings

A text column with few rows at a small site may be a category of many: only all files together can tell.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from auqadmm.files.tabular import Coded, Roles, Sheet
from auqadmm.problem import InputError
from auqadmm.words import quoted, visible

MOST_LEVELS = 1000  # levels of a text column beyond which it counts as names, not categories
FEW_LEVELS = 20  # so many levels are categories, however few rows each has
SURE_LEVELS = 50  # beyond so many, a file alone can tell an id
NEARLY = 0.9  # levels per row of what is surely an id in one file
LEAST_ROWS = 3  # of a column that is refused for its name

# what the last words of a sentence may offer
OPTIONS, FORMULA, FRAME = "options", "formula", "frame"


class SuspectError(InputError):
    """`bare`: the same without numbers, for those who may not know them."""

    def __init__(self, text: str, bare: str) -> None:
        super().__init__(text)
        self.bare = bare


# ---------------------------------------------------------------------- ids
ID_WORDS = frozenset(["id", "ids", "uid", "uuid", "guid", "pid", "mrn", "ssn", "nhs", "identifier", "pseudonym"])
ID_ENDS = re.compile(
    r"(patient|subject|participant|person|record|case|study|row|sample|user|client|member|visit)_?id"
    r"|(patient|subject|participant|person|record|case|client|member)[_ ]?(no|nr|number|num|code)"
)
COUNTED = frozenset(["year", "month", "week", "day", "hour", "minute", "time", "date", "t", "age", "rank", "order"])
LONG_NUMBER = 10_000_000  # from here on, whole numbers of as many digits each are phones, accounts, records


EXPONENT = re.compile(r"[1-9](?:\.\d+)?[eE]\+?(\d{1,2})")


def names_rows(name: str) -> bool:
    """Whether a column is called as ids are: id, patient_id, PatientID, MRN."""
    return bool(ID_WORDS & _words(name)) or ID_ENDS.fullmatch(name.lower()) is not None


def _words(name: str) -> set[str]:
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return {word.lower() for word in re.split(r"[^0-9A-Za-z]+", parted) if word}


def refuse_own_texts(sheet: Sheet, name: str, column: Coded, place: str) -> None:
    """What one file alone can tell about its text."""
    levels = len(np.unique(column.codes[column.codes >= 0]))
    rows = int((column.codes >= 0).sum())
    unique = levels > SURE_LEVELS and levels > NEARLY * rows
    called = levels == rows >= LEAST_ROWS and names_rows(name)
    if levels > MOST_LEVELS or unique or called:
        raise _is_id(name, sheet.source, levels, sheet.rows, "texts", place)
    if _dates(column):
        raise _is_date(sheet.source, name, place)


def refuse_all_texts(name: str, sources: str, levels: int, rows: int, place: str) -> None:
    """What all files together tell about a text column."""
    if levels > MOST_LEVELS or (levels > FEW_LEVELS and 2 * levels > rows):
        raise _is_id(name, sources, levels, rows, "texts", place)


def refuse_numbered(sheet: Sheet, roles: Roles, path: Path | None = None) -> None:
    """Whole numbers of a table that count the rows in any order, are called as ids are, are long and all different, or
    read like 20240131; not if the user chose them. Arrays were made to be features, and at prediction the model knows
    its columns. `path`: a csv file, which may show more than the numbers do: 000123, 1.2E+11."""
    if roles.features is not None or (roles.target is None and roles.time is None):
        return
    nearly = []
    for place, name in enumerate(sheet.number_names):
        values = sheet.numbers[:, place]
        if not len(values) or not (np.isfinite(values).all() and (values == np.trunc(values)).all()):
            continue
        levels = len(np.unique(values))
        unique = levels == len(values)
        counts = unique and levels > FEW_LEVELS and _counts(values) and not COUNTED & _words(name)
        called = unique and levels >= LEAST_ROWS and names_rows(name)
        if counts or called or (unique and levels > FEW_LEVELS and _long(values) and not _days(values)):
            raise _is_id(name, sheet.source, levels, sheet.rows, "whole numbers", OPTIONS)
        if levels >= LEAST_ROWS and _days(values):
            raise _is_date(sheet.source, name, OPTIONS)
        if levels > FEW_LEVELS and levels > NEARLY * len(values):
            nearly.append((name, levels))
    if path is None or not nearly or path.suffix.lower() not in (".csv", ".tsv"):
        return
    from auqadmm.files.tabular_arrow import first_texts  # pyarrow, which frames and arrays do without

    texts = first_texts(path, [name for name, _ in nearly])
    for name, levels in nearly:
        if _padded(texts.get(name, [])) or _exponents(texts.get(name, [])):
            raise _is_id(name, sheet.source, levels, sheet.rows, "whole numbers", OPTIONS)


def _counts(values: np.ndarray) -> bool:
    """One by one, or in steps of 10, 100, 1000, in any order."""
    steps = np.unique(np.diff(np.sort(values)))
    return len(steps) == 1 and steps[0] in (1, 10, 100, 1000)


def _padded(texts: Sequence[str]) -> bool:
    """As many digits each, some of them zeros in front: numbers are not written like that."""
    digits = [text for text in texts if text.isdigit()]
    alike = len({len(text) for text in digits}) == 1
    return alike and len(digits) == len(texts) and any(text[0] == "0" for text in digits)


def _exponents(texts: Sequence[str]) -> bool:
    """Long numbers of as many digits each that a spreadsheet has shortened: 1.23457E+11."""
    found = [EXPONENT.fullmatch(text) for text in texts]
    powers = {int(one[1]) for one in found if one is not None}
    return bool(found) and all(found) and len(powers) == 1 and 10 ** min(powers) >= LONG_NUMBER


def refuse_factors(sheet: Sheet, names: Iterable[str], place: str) -> None:
    """Numbers that a formula takes as categories, C(…), nearly all of them different."""
    for name in names:
        if name in sheet.number_names:
            values = sheet.numbers[:, sheet.number_names.index(name)]
            levels = len(np.unique(values))
            if levels > SURE_LEVELS and levels > NEARLY * len(values):
                raise _is_id(name, sheet.source, levels, sheet.rows, "numbers", place)


def _long(values: np.ndarray) -> bool:
    """Many digits, as many in every number; amounts are round, or of any length."""
    if values.min() < LONG_NUMBER:
        return False
    alike = len({len(str(int(x))) for x in (values.min(), values.max())}) == 1
    return alike and 2 * int((values % 100 == 0).sum()) < len(values)


def _days(values: np.ndarray) -> bool:
    """Whether all numbers read year, month, day."""
    year, month, day = values // 10000, values // 100 % 100, values % 100
    fits = (year >= 1800) & (year < 2200) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    return bool(fits.all())


def _is_id(name: str, source: str, levels: int, rows: int, what: str, place: str) -> InputError:
    typed = shlex.quote(visible(name))
    remedies = {
        OPTIONS: f"--id {typed} if it names the rows, --drop {typed} to leave it out, --categorical {typed} to encode "
        "it all the same",
        FORMULA: f"Leave it out of the formula; --categorical {typed} encodes it all the same",
        FRAME: "Leave it out of the formula; C(…, levels=[…]) with all its levels encodes it all the same",
    }
    told = remedies[place]
    if what == "whole numbers":
        told += ", or choose the columns with --features, this one among them, to use it as a number"
    return SuspectError(
        f"Column {quoted(name)} of {source} has {levels} different {what} in {rows} rows: is this an id? {told}.",
        f"column {quoted(name)} is probably an id; leave it out",
    )


# ---------------------------------------------------------------------- dates
def _is_date(source: str, name: str, place: str) -> InputError:
    return SuspectError(
        f"{source}: column {quoted(name)} holds dates or times, which no linear model takes; turn them into numbers, "
        f"or leave the column out{'' if place != OPTIONS else ' (--drop)'}.",
        f"column {quoted(name)} holds dates or times; leave it out",
    )


_DAY, _MONTH, _YEAR = r"(0?[1-9]|[12]\d|3[01])", r"(0?[1-9]|1[0-2])", r"(\d{2}|(18|19|20|21)\d{2})"
_CLOCK = r"([01]?\d|2[0-4]):[0-5]\d(:[0-5]\d([.,]\d+)?)?( ?[AaPp][Mm])?"
_DATE = "|".join(
    rf"{first}{mark}{second}{mark}{third}"
    for mark in ("-", "/", r"\.")
    for first, second, third in (
        (r"(18|19|20|21)\d{2}", _MONTH, _DAY),
        (_DAY, _MONTH, _YEAR),
        (_MONTH, _DAY, _YEAR),
    )
)
_NAMED = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DATE += rf"|{_DAY}[ -]{_NAMED}[ -]{_YEAR}|{_NAMED} {_DAY},? {_YEAR}|(18|19|20|21)\d{{2}}-(0[1-9]|1[0-2])"
MOMENT = re.compile(rf"(?i)({_CLOCK}|({_DATE})([T ]+{_CLOCK} ?(Z|UTC|[+-]\d\d:?\d\d)?)?)")


def _dates(column: Coded) -> bool:
    """Whether more than half of the texts are dates or times."""
    found = sum(MOMENT.fullmatch(level.strip()) is not None for level in column.levels)
    return 2 * found > len(column.levels)


# ---------------------------------------------------------------------- spellings
WHOLE = re.compile(r"([+-]?\d+)\.0+")


def folded(text: str) -> str:
    """A text without what people do not see or mean: case, blanks, forms of characters; 1.0 as 1."""
    plain = "".join(c for c in unicodedata.normalize("NFKC", text) if unicodedata.category(c) != "Cf")
    plain = unicodedata.normalize("NFKC", " ".join(plain.split()).casefold())
    whole = WHOLE.fullmatch(plain)
    return whole[1] if whole else plain


def refuse_spellings(what: str, found: Sequence[tuple[str, Iterable[object]]], remedy: str) -> None:
    """Texts of several sources of which two would read the same; `what` they are: a label, a category of a column."""
    first: dict[str, tuple[str, str]] = {}
    for source, texts in found:
        for text in texts:
            if not isinstance(text, str):
                continue
            other, where = first.setdefault(folded(text), (text, source))
            if other != text:
                one, two = _apart(other, text)
                raise InputError(
                    f"{what} {one} ({where}) and {two} ({source}) differ only {_by(other, text)}: mend one of "
                    f"them{remedy}."
                )


def _apart(one: str, two: str) -> tuple[str, str]:
    """Both in quotes; with their characters written out where they would look the same."""
    if unicodedata.normalize("NFC", one) == unicodedata.normalize("NFC", two):
        one, two = (text.encode("ascii", "backslashreplace").decode() for text in (one, two))
    if "  " in one.strip() + two.strip():  # a sentence would show one blank for many
        one, two = one.replace(" ", "␣"), two.replace(" ", "␣")
    return quoted(one), quoted(two)


def _by(one: str, two: str) -> str:
    if " ".join(one.split()).casefold() == " ".join(two.split()).casefold():
        return "by case or blanks"
    if WHOLE.fullmatch(one.strip()) or WHOLE.fullmatch(two.strip()):
        return "in how a number is written"
    return "in how their characters are written"
