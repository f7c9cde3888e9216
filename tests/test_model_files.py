"""Models in files: the round trip, and what is refused."""

import hashlib
import json

import numpy as np
import pandas as pd
import pytest
import safetensors.numpy
import scipy.sparse
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.datasets import load_iris
from sklearn.frozen import FrozenEstimator

import auqadmm
from auqadmm import ConsensusElasticNet, ConsensusLinearSVC, ConsensusLogisticRegression, ModelError
from auqadmm.files.model import Parts, fitted
from auqadmm.files.preprocessing import Column, Encoding

X, Y = load_iris(return_X_y=True, as_frame=True)
ESTIMATORS = [
    ConsensusLogisticRegression(max_iter=30, tol=1e-4),
    ConsensusLinearSVC(max_iter=100, tol=1e-4),
    ConsensusElasticNet(alpha=0.01, tol=1e-6),
]


def mixed(**changes):
    """A model of two numbers and a category."""
    columns = (Column("age"), Column("dose"), Column("colour", ("blue", "red"), "red"))
    encoding = Encoding(columns, np.array([50.0, 3.0]), np.array([10.0, 2.0]), np.array([50.0, 3.0]))
    coef = np.array([[1.0, -2.0, 0.5, -0.5]])
    parts = {
        "kind": "logistic",
        "encoding": encoding,
        "coef": coef,
        "intercept": np.array([0.25]),
        "classes": ("no", "yes"),
    }
    return Parts(**{**parts, **changes})


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("named", [True, False])
def test_an_estimator_predicts_the_same_after_the_round_trip(estimator, named, tmp_path):
    data = X if named else X.to_numpy()
    trained = clone(estimator).fit(data, Y, sites=Y)
    auqadmm.save(trained, tmp_path / "model")
    model = auqadmm.load(tmp_path / "model")
    for call in ("predict", "predict_proba", "decision_function"):
        assert hasattr(model, call) == hasattr(trained, call)
        if hasattr(trained, call):
            np.testing.assert_array_equal(getattr(model, call)(data), getattr(trained, call)(data))
    np.testing.assert_array_equal(model.coef_, trained.coef_)
    np.testing.assert_array_equal(model.intercept_, trained.intercept_)
    assert model.score(data, Y) == trained.score(data, Y)
    assert (is_classifier(model), is_regressor(model)) == (is_classifier(trained), is_regressor(trained))
    assert model.n_features_in_ == 4
    assert not named or (model.feature_names_in_ == trained.feature_names_in_).all()
    auqadmm.save(model, tmp_path / "again")
    assert (tmp_path / "again" / "model.json").read_bytes() == (tmp_path / "model" / "model.json").read_bytes()


def test_frames_arrays_and_sparse_matrices_of_raw_columns():
    model = fitted(mixed())
    frame = pd.DataFrame({"colour": ["red", "blue", None], "dose": [5.0, np.nan, 1.0], "age": [60, 40, 50], "x": 0})
    logits = [1 - 2 - 0.5 + 0.25, -1 + 0.5 + 0.25, 2 - 0.5 + 0.25]
    np.testing.assert_allclose(model.decision_function(frame), logits)
    np.testing.assert_allclose(model.decision_function(frame.astype({"colour": "category"})), logits)
    array = frame[model.feature_names_in_].to_numpy(dtype=object)
    array[array != array] = None
    np.testing.assert_allclose(model.decision_function(array), logits)
    assert model.predict(frame).tolist() == ["no", "no", "yes"]
    assert model.get_feature_names_out().tolist() == ["age", "dose", "colour=blue", "colour=red"]
    plain = fitted(mixed(encoding=Encoding.none(["a", "b"]), coef=np.array([[1.0, 2.0]])))
    np.testing.assert_allclose(plain.decision_function(scipy.sparse.csr_matrix([[1.0, 0.0]])), [1.25])


def test_scikit_learn_takes_it():
    model = fitted(mixed())
    frame = pd.DataFrame({"colour": ["red", "blue"], "dose": [5.0, 1.0], "age": [60, 40]})
    assert (clone(model).predict(frame) == model.predict(frame)).all()
    assert (FrozenEstimator(model).fit(frame, ["no", "yes"]).predict(frame) == model.predict(frame)).all()
    with pytest.raises(NotImplementedError, match="cannot be fitted again"):
        model.fit(frame, ["no", "yes"])


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (pd.DataFrame({"age": [1]}), "X lacks column 'dose'"),
        (np.ones((2, 2)), r"X must have 3 columns \(feature_names_in_\), got shape \(2, 2\)"),
        (pd.DataFrame({"age": ["old"], "dose": [1], "colour": ["red"]}), "X: row 1, column 'age' is 'old'"),
        (pd.DataFrame({"age": [1], "dose": [1], "colour": ["mauve"]}), "X: row 1, column 'colour' is 'mauve'"),
        (pd.DataFrame({"age": [np.inf], "dose": [1], "colour": ["red"]}), "X: row 1, column 'age' is inf"),
        (pd.DataFrame({"age": [1, "a"], "dose": [1, 2], "colour": ["red"] * 2}), "X: column 'age' cannot be read"),
    ],
)
def test_data_that_a_model_cannot_use(data, told):
    with pytest.raises(auqadmm.InputError, match=told):
        fitted(mixed()).predict(data)


def test_save_refuses_what_is_no_model(tmp_path):
    with pytest.raises(auqadmm.InputError, match="one of auqadmm's estimators, got dict"):
        auqadmm.save({}, tmp_path)
    with pytest.raises(auqadmm.InputError, match="is not fitted yet"):
        auqadmm.save(ConsensusElasticNet(), tmp_path)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- damaged, foreign, newer
@pytest.fixture
def saved(tmp_path):
    return auqadmm.save(fitted(mixed()), tmp_path / "model")


def rewritten(folder, change, arrays=None):
    """The files after a change, with checksums that are right again."""
    path = folder / "model.json"
    content = json.loads(path.read_text())["content"]
    change(content)
    if arrays is not None:
        data = safetensors.numpy.save(arrays)
        (folder / "model.safetensors").write_bytes(data)
        content["arrays"] |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({"checksum": hashlib.sha256(text.encode()).hexdigest(), "content": content}))


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_every_changed_byte_is_noticed(saved, name):
    whole = (saved / name).read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 40)):
        (saved / name).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            model = auqadmm.load(saved)
        except ModelError as error:
            told = str(error)
        else:  # a space of the indentation became another one
            assert name == "model.json"
            np.testing.assert_array_equal(model.coef_, mixed().coef)
            continue
        assert str(saved / name) in told
    for cut in (0, 10, len(whole) - 1):
        (saved / name).write_bytes(whole[:cut])
        with pytest.raises(ModelError, match="damaged"):
            auqadmm.load(saved)


def test_a_newer_format_is_named(saved):
    rewritten(saved, lambda content: content.update(version=3))
    with pytest.raises(ModelError, match="has format version 3, this library reads 1 to 2; install a newer auqadmm"):
        auqadmm.load(saved)


def test_the_first_format_is_read(saved):
    def older(content):
        content.update(version=1)
        del content["family"], content["site_intercepts"]

    rewritten(saved, older)
    np.testing.assert_array_equal(auqadmm.load(saved).coef_, mixed().coef)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(classes=["no"]),
        lambda c: c.update(classes=["a", "b", "c"]),
        lambda c: c.update(classes=None),
        lambda c: c.update(model="forest"),
        lambda c: c.pop("preprocessing"),
        lambda c: c["preprocessing"].update(columns=[]),
        lambda c: c["preprocessing"].update(columns=7),
        lambda c: c.update(arrays=3),
        lambda c: c["preprocessing"]["columns"].pop(),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(saved, change):
    rewritten(saved, change)
    with pytest.raises(ModelError, match=r"model\.json is damaged: "):
        auqadmm.load(saved)


@pytest.mark.parametrize(
    "arrays",
    [
        {"coef": np.full((1, 4), np.nan)},
        {"coef": np.ones((1, 4), dtype=np.float32)},
        {"coef": np.ones((4, 1))},
        {"scale": np.ones(3)},
    ],
)
def test_arrays_that_do_not_fit_are_refused(saved, arrays):
    held = safetensors.numpy.load_file(saved / "model.safetensors")
    rewritten(saved, lambda content: None, held | arrays)
    with pytest.raises(ModelError, match="do not fit together"):
        auqadmm.load(saved)


def test_foreign_files_are_refused(tmp_path, saved):
    with pytest.raises(ModelError, match="is not a folder"):
        auqadmm.load(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"There is no model in .*: model\.json is missing"):
        auqadmm.load(tmp_path)
    for text in ("[]", '{"content": {}}', "null", '{"format": "other"}'):
        (saved / "model.json").write_text(text)
        with pytest.raises(ModelError, match="is not the file of an auqadmm model"):
            auqadmm.load(saved)
    (saved / "model.json").write_text("[" * 100000)
    with pytest.raises(ModelError, match="it is not JSON"):
        auqadmm.load(saved)
