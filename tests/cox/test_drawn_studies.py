"""Studies drawn at random, against R's survival, run here: ties, entry times, weights, strata, sites without events."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import auqadmm as aq

SCRIPT = r"""
suppressMessages(library(survival))
tell <- function(name, x) cat(name, formatC(as.vector(x), digits = 17, format = "g"), "\n")
exact <- coxph.control(eps = 1e-14, toler.chol = 1e-15, iter.max = 200)
for (path in commandArgs(TRUE)) {
  d <- read.csv(path)
  name <- function(what) paste(sub("[.]csv$", "", basename(path)), what, sep = ".")
  d$row <- seq_len(nrow(d))
  w <- d$weight
  d$y <- if (any(d$entry >= 0)) Surv(d$entry, d$time, d$event) else Surv(d$time, d$event)
  d$g <- interaction(d$site, d$stratum, drop = TRUE)
  f <- y ~ a + b + c + offset(o) + strata(g)
  fit <- coxph(f, d, weights = w, ties = d$ties[1], control = exact, robust = FALSE, x = TRUE)
  tell(name("coef"), coef(fit))
  tell(name("vcov"), vcov(fit))
  tell(name("loglik"), fit$loglik)
  tell(name("aic_bic"), c(AIC(fit), BIC(fit)))
  for (by in c("row", "site")) {
    d$by <- d[[by]]
    tell(name(by), vcov(coxph(f, d, weights = w, ties = d$ties[1], control = exact, cluster = by)))
  }
  for (how in c("identity", "log")) {
    tell(name(how), cox.zph(fit, transform = how, terms = FALSE)$table[, "chisq"])
  }
  tell(name("concordance"), concordance(fit, timefix = FALSE)$concordance)
}
"""
COLUMNS = ("a", "b", "c", "time", "event", "entry", "stratum", "site", "weight", "o")


def drawn(seed: int) -> tuple[dict[str, np.ndarray], str]:
    """The columns of a study, and how ties are to be treated."""
    rng = np.random.default_rng(seed)
    sizes = np.r_[rng.integers(40, 120, size=2), rng.choice([1, 2, 9, 30], size=rng.integers(1, 4))]
    site = np.repeat(np.arange(len(sizes)), sizes)
    n = len(site)
    a, b = np.round(rng.normal(size=n), 3), rng.integers(2, size=n)
    c = np.round(rng.exponential(size=n) + 0.1 * site, 3)
    o = np.round(rng.normal(scale=0.3, size=n), 3) if rng.random() < 0.5 else np.zeros(n)
    coarse = rng.choice([1.0, 0.25, 0.001])  # many ties, some, hardly any
    rate = np.exp(0.5 * a - 0.6 * b + 0.2 * c + o + 0.2 * site) / 6
    time, limit = (np.ceil(x / coarse) * coarse for x in (rng.exponential(1 / rate), rng.uniform(1, 15, size=n)))
    event = (time <= limit).astype(float)
    time = np.minimum(time, limit)
    event[site == len(sizes) - 1] *= rng.random() < 0.5
    entry = np.full(n, -1.0)
    if rng.random() < 0.5:
        late = np.floor(time * rng.uniform(0, 0.9, size=n) / coarse) * coarse
        entry = np.where(rng.random(n) < 0.6, np.minimum(late, time - coarse), 0.0)
    stratum = rng.integers(2, size=n) if rng.random() < 0.5 else np.zeros(n)
    weight = np.round(rng.uniform(0.3, 3, size=n), 2) if rng.random() < 0.5 else np.ones(n)
    values = (a, b, c, time, event, entry, stratum, site, weight, o)
    return dict(zip(COLUMNS, values, strict=True)), ["efron", "breslow"][rng.integers(2)]


def same(ours, theirs, what: str, rel: float = 1e-8) -> None:
    np.testing.assert_allclose(np.ravel(ours), theirs, rtol=rel, atol=0, err_msg=what)


def agree(seeds: range, folder: Path) -> None:
    if shutil.which("Rscript") is None:
        pytest.skip("R is not installed; fixtures/survival.txt has its numbers for other rows")
    for seed in seeds:
        study, ties = drawn(seed)
        lines = [",".join([*COLUMNS, "ties"])]
        lines += [",".join([*(repr(float(x)) for x in row), ties]) for row in zip(*study.values(), strict=True)]
        (folder / f"{seed}.csv").write_text("\n".join(lines))
    (folder / "run.R").write_text(SCRIPT)
    ran = subprocess.run(
        ["Rscript", folder / "run.R", *sorted(folder.glob("*.csv"))], capture_output=True, text=True, check=False
    )
    if "there is no package called" in ran.stderr:
        pytest.skip("R has no package survival")
    assert ran.returncode == 0, ran.stderr
    truth = {name: np.array(rest, dtype=float) for name, *rest in map(str.split, ran.stdout.splitlines())}
    for seed in seeds:
        compared(seed, {key.split(".", 1)[1]: x for key, x in truth.items() if key.split(".")[0] == str(seed)})


def compared(seed: int, known: dict[str, np.ndarray]) -> None:
    s, ties = drawn(seed)
    X, y = np.column_stack([s["a"], s["b"], s["c"]]), np.column_stack([s["time"], s["event"], s["entry"]])
    more = {"sites": s["site"], "strata": s["stratum"], "sample_weight": s["weight"], "offset": s["o"]}
    model = aq.ConsensusCox(ties).fit(X, y, **more)
    found, at = model.inference_, f"study {seed}: "
    same(found.coef, known["coef"], at + "coef")
    same(model.coef_, known["coef"], at + "coef_")
    same(found.vcov, known["vcov"], at + "vcov")
    same([found.llnull, found.llf], known["loglik"], at + "loglik")
    same([found.aic, found.bic], known["aic_bic"], at + "aic, bic")
    same(model.inference("robust").vcov.diagonal(), known["row"].reshape(3, 3).diagonal(), at + "robust")
    same(model.inference("cluster").vcov.diagonal(), known["site"].reshape(3, 3).diagonal(), at + "cluster")
    for how in ("identity", "log"):
        same(model.ph_test(how).statistic, known[how], at + how)
    same(model.concordance_, known["concordance"], at + "concordance")


def test_drawn_studies(tmp_path):
    agree(range(5), tmp_path)


@pytest.mark.campaign
def test_many_drawn_studies(tmp_path):
    agree(range(100, 300), tmp_path)
