"""Sites without a network: real sessions, real policies, real masks; messages are handed over in this process."""

from __future__ import annotations

import uuid

import numpy as np
import pandas as pd

import auqadmm as aq
from auqadmm.sites.engine import Sites
from auqadmm.sites.keys import make_key, read_key
from auqadmm.sites.masks import Masker
from auqadmm.sites.policy import Policy
from auqadmm.sites.session import SiteHolder
from auqadmm.sites.study import SiteData, Study
from auqadmm.sites.tables import SiteTable

NAMES = ("berlin", "lyon", "oslo")
DATA = SiteData("heart", target="sick")


def patients(seed=0, rows=120):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3)) * [12.0, 4.0, 1.0] + [50.0, 26.0, 0.0]
    stage = rng.choice(["i", "ii", "iii"], rows)
    z = 0.08 * (X[:, 0] - 50) - 0.1 * (X[:, 1] - 26) + 0.3 * X[:, 2] + 0.7 * (stage == "ii")
    sick = np.where(rng.random(rows) < 1 / (1 + np.exp(-z)), "yes", "no")
    frame = pd.DataFrame(X, columns=["age", "bmi", "marker"])
    return frame.assign(stage=stage, sick=sick, days=rng.integers(1, 400, rows), patient=np.arange(rows) + 1000)


def _keys(folder, names):
    made = {n: folder / f"{n}.key" for n in names}
    for name, path in made.items():
        if not path.exists():
            make_key(name, folder)
    return {n: read_key(path, n) for n, path in made.items()}


class Inside:
    """A link to sessions; `heard` are all answers, by site."""

    def __init__(self, folder, policies, run=None, frames=None, names=NAMES):
        self.names, self.run = names, run or uuid.uuid4().hex
        keys = _keys(folder, names)
        self.heard = {n: [] for n in names}
        self.logs = {n: [] for n in names}
        self.sessions = {}
        for k, name in enumerate(names):
            policy = policies[name] if isinstance(policies, dict) else policies
            path = folder / f"{name}.csv"
            if frames is not None or not path.exists():
                frame = patients(k, 120 + 40 * k) if frames is None else frames[name]
                frame.to_csv(path, index=False)

            def masker(run, sites, name=name):
                return Masker(keys[name], {n: keys[n].public for n in sites}, run, name)

            def table(data, name=name, path=path, policy=policy):
                return SiteTable(data, path, name, policy, None, ("patient",))

            self.sessions[name] = SiteHolder(
                run=self.run,
                own=name,
                policy=policy,
                roster=dict.fromkeys(names, "key"),
                table=table,
                masker=masker,
                state=folder / f"state-{name}",
                secret=f"secret of {name}".encode(),
                log=self.logs[name].append,
            )

    def call(self, messages, timeout):
        answers = {n: self.sessions[n](m) for n, m in messages.items()}
        for n, answer in answers.items():
            self.heard[n].append(answer)
        return answers

    def close(self):
        return None


class InsideSites(Sites):
    def __init__(self, folder, policies=None, **more):
        super().__init__("inside")
        self.folder, self.policies, self.more = folder, policies or Policy(), more

    def connect(self, data="heart"):
        self.made = link = Inside(self.folder, self.policies, **self.more)
        return Study(link, link.names, 10.0)

    @property
    def link(self):
        return self.study.link

    def blocks(self):
        """What sites computed on, for the same fit without sites."""
        return [self.link.sessions[n].brought[0] for n in self.link.names]


def posed(blocks, loss=None, g=None):
    return aq.Problem(loss or aq.Logistic(reduction="pooled"), g or aq.L2(0.01), blocks, intercept=True)


def same_model(found, known, rel=1e-12):
    """Equal to so much of the largest coefficient."""
    found, known = np.asarray(found), np.asarray(known)
    np.testing.assert_allclose(found, known, rtol=0, atol=rel * np.abs(known).max())
