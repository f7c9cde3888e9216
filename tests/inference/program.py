"""Inference in several processes, each with its own sites; what rank 0 found goes to FOLDER/found.npz."""

import os
import sys
from pathlib import Path

import numpy as np

import auqadmm as aq
from tests.inference.test_engines import NAMES, blocks, numbers, problem

found = {}
for name in NAMES:
    own = blocks(name)
    # one process has four sites, the other a single one
    made = problem(name, lambda rank, world, own=own: own[:4] if rank == 0 else own[4:])
    result = aq.solve(made, engine=aq.engines.Torch(timeout=60), inference=True)
    found |= {f"{name} {key}": x for key, x in numbers(result).items()}

if os.environ["RANK"] == "0":
    np.savez(Path(sys.argv[1]) / "found.npz", **found)
