"""Runs that save themselves, one after the other in the same processes; what each rank saw goes to FOLDER/rankR.json.

Arguments: MODE FOLDER. "all": everything that can happen; "go on": runs that others have begun go on here.
"""

import hashlib
import json
import os
import resource
import shutil
import signal
import sys
from pathlib import Path

import auqadmm as aq
from auqadmm.testing.cases import Share, clouds

rank = int(os.environ.get("RANK", "0"))
LENGTH, STOP = 12, 5
TIGHT = aq.local.NewtonCG(tol=1e-13)
NEVER = {"abs_tol": 0, "rel_tol": 0, "certificate_tol": 0, "evaluate_every": 4}


def problem(skip=0):
    """Six blocks; every process makes its own."""
    return aq.Problem(aq.Multinomial(reduction="mean"), aq.L2(0.1), Share((*clouds(), *clouds()), skip))


def told(result):
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result.history.to_dicts()]
    found = {"status": str(result.status), "message": result.message, "n_iter": result.n_iter, "rows": rows}
    return {**found, "v": result.v.flatten().tolist(), "lam": None if result.lam is None else result.lam.sum().item()}


def run(folder, method="rb-admm", engine="torch", skip=0, **options):
    options = {"max_iter": LENGTH, "local": TIGHT, **NEVER, **options}
    try:
        return told(aq.solve(problem(skip), method, engine, checkpoint=folder, **options))
    except Exception as error:
        return {"status": type(error).__name__, "message": str(error)}


def by_first(act):
    """Files are changed by one process; the others wait for it where the next run begins."""
    if rank == 0:
        act()


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def forge(path):
    """An array that is not there, with checksums that fit: the process that holds these blocks notices, no other."""
    text = (path / "blocks-00001.json").read_text().replace('"blocks.u"', '"blocks.nothing"')
    (path / "blocks-00001.json").write_text(text)
    held = json.loads((path / "checkpoint.json").read_text())["content"]
    entry = {"size": len(text.encode()), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    held["files"]["blocks-00001.json"] = entry
    plain = json.dumps(held, sort_keys=True, separators=(",", ":"))
    whole = {"checksum": hashlib.sha256(plain.encode()).hexdigest(), "content": held}
    (path / "checkpoint.json").write_text(json.dumps(whole))


def newest(folder):
    return max(folder.glob("checkpoint-*"))


def limit(size):
    """No file of this process may become longer: as if the disk were full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def at(k, act):
    return lambda event: act() and False if event.row.iteration == k else False


def me(number):
    return lambda: os.kill(os.getpid(), number)


def everything(folder, seen):
    for name, method in (("auq-lr", "auq-lr"), ("rb", "rb-admm"), ("fista", aq.baselines.FISTA(lipschitz=10.0))):
        seen[f"whole {name}"] = run(None, method)
        seen[f"stopped {name}"] = run(folder / name, method, max_iter=STOP)
        by_first(lambda name=name: [shutil.copytree(folder / name, folder / f"three-{k} {name}") for k in (1, 2)])
        seen[f"resumed {name}"] = run(folder / name, method)
    seen["again"] = run(folder / "rb", "rb-admm")
    seen["resumed idle"] = [run(folder / "idle", skip=1, max_iter=k) for k in (STOP, LENGTH)][1]

    # signals: to one of them, to all of them
    for name, number, whom in (("sigterm", signal.SIGTERM, (1,)), ("ctrl-c", signal.SIGINT, (0, 1, 2))):
        asked = [at(STOP, me(number))] if rank in whom else []
        seen[name] = run(folder / name, callbacks=asked)
        seen[f"resumed {name}"] = run(folder / name)
    seen["handler"] = {"restored": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL}

    # damage and refusals
    for name in ("damaged", "forged"):
        run(folder / name, max_iter=STOP)
    by_first(lambda: (flip(newest(folder / "damaged") / "shared.safetensors"), forge(newest(folder / "forged"))))
    for name in ("damaged", "forged"):
        seen[name] = run(folder / name)
    run(folder / "ruined", max_iter=STOP)
    by_first(lambda: [flip(path / "history.json") for path in (folder / "ruined").glob("checkpoint-*")])
    seen["ruined"] = run(folder / "ruined")
    seen["other method"] = run(folder / "rb", "c-admm")
    seen["nothing there"] = run(aq.Checkpoint(folder / "nowhere", resume=True))
    seen["not empty"] = run(aq.Checkpoint(folder / "rb", resume=False))
    seen["one only"] = run(folder / "one" if rank == 1 else None)
    seen["own folders"] = run(folder / f"own-{rank}", max_iter=STOP)
    seen["written"] = {"folders": sorted(path.name for path in folder.glob("own-*"))}

    # a full disk, later and at once
    full = [at(STOP, lambda: limit(100))] if rank == 0 else []
    seen["full"] = run(aq.Checkpoint(folder / "full", every=3), callbacks=full)
    seen["full at once"] = run(folder / "full at once")
    if rank == 0:
        limit(resource.RLIM_INFINITY)


def go_on(folder, seen):
    for name in ("three-2 auq-lr", "local"):
        seen[name] = run(folder / name, "auq-lr")
    seen["two"] = run(folder / "two", "auq-lr", max_iter=STOP)


if __name__ == "__main__":
    mode, folder = sys.argv[1], Path(sys.argv[2])
    os.fsync = lambda handle: None  # nobody cuts the power here
    seen = {}
    {"all": everything, "go on": go_on}[mode](folder, seen)
    (folder / mode / f"rank{rank}.json").write_text(json.dumps(seen))
