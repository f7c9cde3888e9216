"""A driver that runs until it is interrupted: driver.py ENGINE FOLDER."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import auqadmm as aq
from tests.engines.driven import ENDLESS, Slow, problem, rows


def main():
    folder = Path(sys.argv[2])

    def note(event):
        with (folder / "log").open("a") as log:
            log.write(f"{event.row.iteration}\n")

    engine = {"ray": aq.engines.Ray, "dask": aq.engines.Dask}[sys.argv[1]](own_code=True)
    found = aq.solve(
        problem([rows(j) for j in range(4)]), "c-admm", engine, local=Slow(tol=1e-13), callbacks=[note], **ENDLESS
    )
    saw = {"status": str(found.status), "n_iter": found.n_iter, "message": found.message, "v": found.v.tolist()}
    (folder / "result.json").write_text(json.dumps({**saw, "lam": list(found.lam.shape), "kkt": found.certificate.kkt}))


if __name__ == "__main__":
    main()
