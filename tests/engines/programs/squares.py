"""Every process fits an elastic net and a path on rows of its own; what it found goes to FOLDER/rankR.json."""

import json
import os
import sys
from pathlib import Path

import numpy as np

import auqadmm as aq

rank = int(os.environ["RANK"])
rng = np.random.default_rng(0)
X, y = rng.normal(size=(120, 6)) + 5, rng.normal(size=120)
own = slice(0, 50) if rank == 0 else slice(50, 120)
engine = aq.engines.Torch(timeout=60)
model = aq.ConsensusElasticNet(0.05, n_blocks=2, engine=engine).fit(X[own], y[own])
path = aq.enet_path(X[own], y[own], alphas=5, n_blocks=1 + rank, engine=engine)
found = {"coef": model.coef_.tolist(), "intercept": model.intercept_, "rounds": model.history_[-1].rounds}
found |= {"alphas": path.alphas.tolist(), "path": path.coef.tolist()}
Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps(found))
