"""`score` of models that were saved: the share of the deviance that they explain, as scikit-learn counts it."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import d2_log_loss_score, d2_tweedie_score, r2_score

import auqadmm as aq

RNG = np.random.default_rng(2)
X = pd.DataFrame(RNG.normal(size=(90, 2)), columns=["a", "b"])
MEAN = np.exp(0.3 * X["a"])
TARGETS = {
    "gaussian": (RNG.normal(MEAN), r2_score),
    "poisson": (RNG.poisson(MEAN), lambda y, m, **w: d2_tweedie_score(y, m, power=1, **w)),
    "gamma": (RNG.gamma(2.0, MEAN), lambda y, m, **w: d2_tweedie_score(y, m, power=2, **w)),
    "tweedie": (
        RNG.poisson(MEAN) * RNG.gamma(2.0, size=90),
        lambda y, m, **w: d2_tweedie_score(y, m, power=1.5, **w),
    ),
    "binomial": ((RNG.uniform(size=90) < 0.5 * MEAN).astype(int), d2_log_loss_score),
}


@pytest.mark.parametrize("family", TARGETS)
def test_the_score_of_a_saved_model(family, tmp_path):
    y, oracle = TARGETS[family]
    y = np.asarray(y)
    fitted = aq.ConsensusGLM(family).fit(X, y, sites=np.arange(90) % 3)
    aq.save(fitted, tmp_path)
    model, weight = aq.load(tmp_path), np.random.default_rng(1).uniform(1, 2, size=90)
    for w in ({}, {"sample_weight": weight}):
        known = oracle(y, model.predict(X), **w)
        assert model.score(X, y, **w) == pytest.approx(known, rel=1e-10)
        assert fitted.score(X, y, **w) == pytest.approx(known, rel=1e-10)


def test_rows_that_cannot_be_scored(tmp_path):
    aq.save(aq.ConsensusGLM("binomial").fit(X, TARGETS["binomial"][0]), tmp_path)
    model = aq.load(tmp_path)
    with pytest.raises(aq.InputError, match=r"y\[0\] is 2, which the model does not know \(its classes: 0, 1\)"):
        model.score(X, np.full(90, 2))
    with pytest.raises(aq.InputError, match="X has 90 rows but y has 3 values"):
        model.score(X, [0, 1, 0])
