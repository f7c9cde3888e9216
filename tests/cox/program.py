"""Cox's model in several processes, each with its own sites; what rank 0 found goes to FOLDER/found.npz."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import auqadmm as aq
from auqadmm.inference.survival import PairsQuery
from tests.cox.rows import study

world = int(os.environ["WORLD_SIZE"])
blocks = study().blocks(entry=True, strata=True, weights=True)


def mine(rank, world):
    """The last process has none."""
    return blocks[4 * rank : 4 * rank + 4]


found = {}
for method in ("newton", "auq-lr"):
    problem = aq.Problem(aq.Cox(), aq.L2(1.0), mine)
    result = aq.solve(problem, method, aq.engines.Torch(timeout=60), certificate_tol=1e-14, inference=True)
    found[method] = result.v.numpy()
    found[f"{method} vcov"] = result.inference("robust").vcov
    found["pairs"] = result.source.ask(result.v, lambda reduce, v: reduce.gather(PairsQuery(v), None).cpu().numpy())

with pytest.raises(aq.InputError, match="No row of positive weight has an event"):
    aq.solve(aq.Problem(aq.Cox(), aq.Zero(), lambda rank, world: [blocks[3]]), engine=aq.engines.Torch(timeout=60))

if os.environ["RANK"] == "0":
    np.savez(Path(sys.argv[1]) / "found.npz", **found)
