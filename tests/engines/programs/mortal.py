"""A run whose processes are killed twice, started by torchrun with --max-restarts=2. Arguments: FOLDER.

At first rank 1 dies inside the local solve of iteration 8; then rank 0 dies while it writes a checkpoint. What each
rank saw in the end goes to FOLDER/rankR.json, the iterations of every attempt to FOLDER/attempt-K-rankR.log.
"""

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from saving import LENGTH, NEVER, TIGHT, problem, rank, told

import auqadmm as aq
from auqadmm.checkpoint import files
from auqadmm.engines import world

world.BOARD_PATIENCE = 1.0  # nobody is slow here
folder, attempt = Path(sys.argv[1]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
calls = []


class Mortal(aq.local.NewtonCG):
    """Solves as ever, but for one call."""

    def solve(self, *args):
        calls.append(1)
        if attempt == 0 and rank == 1 and len(calls) == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().solve(*args)


def dying(path, data):
    """The checkpoint of iteration 9 is never complete."""
    write(path, data)
    if attempt == 1 and path.name == "shared.json" and b'"iteration": 9' in data:
        os.kill(os.getpid(), signal.SIGKILL)


def log(event):
    with (folder / f"attempt-{attempt}-rank{rank}.log").open("a") as file:
        file.write(f"{event.row.iteration} ")


write, files._write_file = files._write_file, dying
options = {"max_iter": LENGTH, "local": Mortal(tol=TIGHT.tol), "callbacks": [log], **NEVER}
keep = aq.Checkpoint(folder / "run", every=3)
engine = aq.engines.Torch(timeout=30)
result = aq.solve(problem(), "rb-admm", engine, checkpoint=keep, on_loss="restart", **options)
(folder / f"rank{rank}.json").write_text(json.dumps(told(result)))
