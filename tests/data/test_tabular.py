"""Files as columns: what each reader makes of them."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse
from sklearn.datasets import dump_svmlight_file

from auqadmm import InputError
from auqadmm.files.tabular import Roles, read
from auqadmm.words import counted, listed, quoted, visible


def values(column):
    """A coded column as its values, None where missing."""
    return [None if k < 0 else column.levels[k] for k in column.codes]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_named_columns(tmp_path, suffix):
    frame = pd.DataFrame(
        {
            "id": ["007", "008", "009"],
            "whole": [1, 2, 3],
            "real": [0.5, np.nan, 2.5],
            "truth": [True, False, True],
            "text": ["b", None, "a"],
            "code": [1, 2, 1],
            "nothing": [None, None, None],
            "place": ["x", "y", "x"],
            "w": [1.0, 2.0, 0.0],
            "y": ["no", "yes", "no"],
        }
    )
    path = tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",")
    roles = Roles(target="y", site="place", id="id", weight="w", categorical=("code",))
    sheet = read(path, roles)
    assert sheet.kinds == {
        "whole": "number", "real": "number", "truth": "number", "text": "text", "code": "text", "nothing": "empty",
    }  # fmt: skip
    np.testing.assert_array_equal(sheet.numbers, [[1, 0.5, 1], [2, np.nan, 0], [3, 2.5, 1]])
    assert values(sheet.texts["text"]) == ["b", None, "a"]
    assert values(sheet.texts["code"]) == ["1", "2", "1"]
    assert sheet.ids.tolist() == ["007", "008", "009"]
    assert values(sheet.target) == ["no", "yes", "no"]
    assert values(sheet.site) == ["x", "y", "x"]
    assert sheet.weight.tolist() == [1, 2, 0]


def test_features_in_the_order_of_the_request_and_other_columns_unread(tmp_path):
    (tmp_path / "a.csv").write_text("a,when,b,y\n1,2020-01-01,3,0.5\n")
    sheet = read(tmp_path / "a.csv", Roles(target="y", features=("b", "a"), labels=False))
    assert list(sheet.kinds) == ["b", "a"]
    assert sheet.numbers.tolist() == [[3, 1]]
    assert sheet.target.tolist() == [0.5]


@pytest.mark.parametrize("spelling", ["", "NA", "N/A", "NaN", "nan", "null", "NULL", '""', "<NA>"])
def test_spellings_of_missing(tmp_path, spelling):
    (tmp_path / "a.csv").write_text(f"x,g,y\n1,a,0\n{spelling},{spelling},1\n")
    sheet = read(tmp_path / "a.csv", Roles(target="y"))
    assert np.isnan(sheet.numbers[1, 0])
    assert values(sheet.texts["g"]) == ["a", None]


def test_quotes_line_breaks_and_a_byte_order_mark(tmp_path):
    (tmp_path / "a.csv").write_bytes('\ufeff"x, 1","g"\r\n1,"a\nb"\r\n2,"say ""hi"""\r\n'.encode())
    sheet = read(tmp_path / "a.csv", Roles())
    assert list(sheet.kinds) == ["x, 1", "g"]
    assert values(sheet.texts["g"]) == ["a\nb", 'say "hi"']


def test_parquet_types(tmp_path):
    table = pa.table(
        {
            "d": pa.array(["a", "b", "a"]).dictionary_encode(),
            "big": pa.array(["x", None, "z"], pa.large_string()),
            "small": pa.array([1, 2, 3], pa.int8()),
            "half": pa.array([1.5, float("nan"), 2.0], pa.float32()),
            "money": pa.array([None, 2, 3], pa.decimal128(5, 2)),
            "y": pa.array([True, False, True]),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    sheet = read(tmp_path / "a.parquet", Roles(target="y"))
    assert values(sheet.texts["d"]) == ["a", "b", "a"]
    assert values(sheet.texts["big"]) == ["x", None, "z"]
    np.testing.assert_array_equal(sheet.numbers, [[1, 1.5, np.nan], [2, np.nan, 2], [3, 2, 3]])
    assert values(sheet.target) == [True, False, True]


def test_svmlight_stays_sparse(tmp_path):
    X = scipy.sparse.random(20, 30, density=0.1, random_state=0, format="csr")
    dump_svmlight_file(X, np.arange(20) % 3, str(tmp_path / "a.svm"), zero_based=False)
    sheet = read(tmp_path / "a.svm", Roles())
    assert sheet.sparse
    assert not sheet.named
    np.testing.assert_allclose(sheet.numbers.toarray()[:, 1:], X.toarray()[:, : sheet.numbers.shape[1] - 1], rtol=1e-12)
    assert sheet.target.levels == (0, 1, 2)
    with pytest.raises(InputError, match="svmlight files have no named columns"):
        read(tmp_path / "a.svm", Roles(target="y"))


def test_npz_with_and_without_names(tmp_path):
    X, y = np.arange(6.0).reshape(3, 2), np.array(["a", "b", "a"])
    np.savez_compressed(tmp_path / "a.npz", X=X, y=y, site=[1, 1, 2], sample_weight=[1, 2, 3], feature_names=["p", "q"])
    np.savez(tmp_path / "b.npz", X=X.astype(np.int8), y=[1.0, 2.5, np.nan])
    sheet = read(tmp_path / "a.npz", Roles(site="site", drop=("p",)))
    assert (list(sheet.kinds), sheet.numbers.tolist()) == (["q"], [[1], [3], [5]])
    assert values(sheet.site) == [1, 1, 2]
    assert sheet.weight.tolist() == [1, 2, 3]
    with pytest.raises(InputError, match=r"b\.npz: row 3, column 'y' has no target"):
        read(tmp_path / "b.npz", Roles())
    np.savez(tmp_path / "b.npz", X=X, y=[1, 2, 3])
    with pytest.raises(InputError, match=r"b\.npz has no site; it has 'X', 'y'"):
        read(tmp_path / "b.npz", Roles(site="site"))


def test_what_is_no_file(tmp_path):
    with pytest.raises(InputError, match="is a folder; name the files in it"):
        read(tmp_path, Roles())
    with pytest.raises(InputError, match="is not a regular file"):
        read("/dev/zero", Roles())


def test_words_for_people():
    assert visible("naïve – ≤ 日本") == "naïve – ≤ 日本"
    assert visible("\x1b[31m\u202e\x00\n") == "\\x1b[31m\\u202e\\x00\\n"
    assert quoted("a" * 100) == "'" + "a" * 59 + "…'"
    assert quoted(3) == "3"
    assert [counted(1, "row"), counted(2, "row"), counted(0, "class")] == ["1 row", "2 rows", "0 classes"]
    assert listed("abcdefg") == "'a', 'b', 'c', 'd', 'e', …"


def test_readers_of_damaged_files_give_a_sentence_or_a_sheet(tmp_path):
    """Whatever the bytes: InputError, never another exception."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=20), "g": list("ab") * 10, "y": [0, 1] * 10})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    np.savez(tmp_path / "a.npz", X=frame[["x"]].to_numpy(), y=frame["y"].to_numpy())
    dump_svmlight_file(frame[["x"]].to_numpy(), frame["y"], str(tmp_path / "a.svm"))
    for path in sorted(tmp_path.iterdir()):
        whole = path.read_bytes()
        roles = Roles(target="y") if path.suffix in (".csv", ".parquet") else Roles()
        refused = 0
        for _ in range(60):
            damaged = bytearray(whole)
            for place in rng.integers(0, len(whole), rng.integers(1, 6)):
                damaged[place] = rng.integers(0, 256)
            path.write_bytes(damaged[: rng.integers(1, len(whole) + 1)] if rng.random() < 0.3 else damaged)
            try:
                sheet = read(path, roles)
                assert sheet.rows > 0
            except InputError as error:
                refused += str(path.name) in str(error)
        assert refused > 0
