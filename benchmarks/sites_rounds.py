"""Round trips of a 64×10 sum over sites on this machine, each a process of its own, over TLS.

python -m benchmarks.sites_rounds 4 --rounds 300
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from tests.sites.places import Place, place


def measured(made: Place, rounds: int) -> dict[str, float]:
    """Milliseconds of a round: the model out, the same size back, and the sum."""
    body = np.random.default_rng(0).standard_normal((64, 10)).tobytes()
    with made.hub() as hub:
        hub.wait(made.names, 120)
        hub.begin("x", made.names, 120)
        taken = []
        for k in range(rounds + 20):
            began = time.perf_counter()
            found = hub.call(dict.fromkeys(made.names, body))
            parts = [np.frombuffer(x) for x in found.values() if isinstance(x, bytes)]
            assert len(parts) == len(made.names)
            np.sum(parts, axis=0)
            if k >= 20:  # connections are open, code is warm
                taken.append(1000 * (time.perf_counter() - began))
    taken.sort()
    return {"median": statistics.median(taken), "p95": taken[int(0.95 * len(taken))], "least": taken[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sites", type=int)
    parser.add_argument("--rounds", type=int, default=300)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        names = [f"site{k:03d}" for k in range(given.sites)]
        with place(Path(folder), names, quiet=30.0) as made:
            for name in names:
                made.start(name)
            found = measured(made, given.rounds)
    sys.stdout.write(json.dumps({"sites": given.sites, "cores": os.cpu_count(), **found}) + "\n")


if __name__ == "__main__":
    main()
