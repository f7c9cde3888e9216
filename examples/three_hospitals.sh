#!/usr/bin/env bash
# Three hospitals fit one model, and no row leaves: every command of docs/tutorials/three-hospitals.md, on one machine.
#
#     bash examples/three_hospitals.sh
#
# Needs auqadmm[sites]. Works in a temporary folder, talks over TLS on 127.0.0.1 only, and starts eight processes: minutes on a busy machine.
# PYTHON: which python has auqadmm (python3). KEEP=1: keep the folder.
set -euo pipefail

python=${PYTHON:-python3}
auqadmm() { "$python" -m auqadmm "$@"; }
# Several commands, a line each, in one process: starting one takes seconds.
commands() { "$python" -c 'import shlex, sys
from auqadmm.cli import main
for line in sys.stdin:
    try:
        main(shlex.split(line))
    except SystemExit as ended:
        if ended.code: raise'; }
folder=$(mktemp -d)
started=()

finish() {
    local code=$?
    for pid in "${started[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    for pid in "${started[@]}"; do
        wait "$pid" 2>/dev/null || true
    done
    if [[ $code -ne 0 ]]; then
        tail -n 20 "$folder"/*.log >&2 || true
        echo "three_hospitals.sh: failed; the logs are above." >&2
    fi
    if [[ -n ${KEEP:-} ]]; then echo "kept: $folder"; else rm -rf "$folder"; fi
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM

say() { printf '\n== %s\n' "$*"; }

# What a text has to contain, as it is told in the tutorial.
told() {
    grep -qF -- "$1" "$2" || { echo "$2 does not say: $1" >&2; exit 1; }
}

# Wait for a command to succeed, two minutes at most.
within() {
    for _ in $(seq 600); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.2
    done
    echo "waited two minutes in vain: $*" >&2
    exit 1
}

cd "$folder"
export OMP_NUM_THREADS=1

say "Rows of three hospitals; identifiers are of each hospital's own kind"
"$python" - <<'PYTHON'
import numpy as np
import pandas as pd

for seed, (name, rows, ids) in enumerate([("berlin", 180, "B-{}"), ("lyon", 240, "{}/69"), ("oslo", 150, "OUS{}")]):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"patient": [ids.format(1000 + k) for k in range(rows)]})
    frame["age"] = rng.normal(58 + 2 * seed, 11, rows).round(1)
    frame["bmi"] = rng.normal(26, 4, rows).round(1)
    frame["smoker"] = rng.integers(0, 2, rows)
    frame["stage"] = rng.choice(["i", "ii", "iii"], rows)
    frame["postcode"] = rng.integers(10, 90, rows) * 1000
    z = 0.06 * (frame.age - 60) + 0.08 * (frame.bmi - 26) + 0.7 * frame.smoker + 0.9 * (frame.stage == "iii") - 0.6
    frame["sick"] = np.where(rng.random(rows) < 1 / (1 + np.exp(-z)), "yes", "no")
    frame.to_csv(f"{name}.csv", index=False)
    print(f"{name}.csv: {rows} rows, {', '.join(frame.columns)}")
PYTHON

say "What each hospital allows"
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
site() { # NAME OTHER OTHER: the first part of a site's file
    cat <<TOML
name = "$1"
key = "$1.key"
audit = "$1-sent.jsonl"

[coordinator]
url = "https://localhost:$port"
key = "coordinator.pub"
ca = "ca.crt"

[roster]
$2 = "$2.pub"
$3 = "$3.pub"
TOML
}
{
    site berlin lyon oslo
    cat <<'TOML'

[data.heart]
path = "berlin.csv"
never = ["patient"]

[policy]
masks = "required"
TOML
} >berlin.toml
{
    site lyon berlin oslo
    cat <<'TOML'

[data.heart]
path = "lyon.csv"
columns = ["age", "bmi", "smoker", "stage", "sick"]
never = ["patient", "postcode"]

[policy]
min_cell = 5
models = ["glm"]
TOML
} >lyon.toml
{
    site oslo berlin lyon
    cat <<'TOML'

[data.heart]
path = "oslo.csv"
never = ["patient", "postcode"]

[policy]
approve = "ask"
rounds_per_day = 2000
TOML
} >oslo.toml
cat >sites.toml <<TOML
listen = "127.0.0.1:$port"
certificate = "localhost.crt"
certificate_key = "localhost.key"
key = "coordinator.key"
join = 60
round = 60

[sites]
berlin = "berlin.pub"
lyon = "lyon.pub"
oslo = "oslo.pub"
TOML
tail -n 8 berlin.toml lyon.toml oslo.toml

say "Keys: everybody makes a pair, gives away NAME.pub, and compares fingerprints by telephone; then a last look"
commands <<'LINES' >check.txt
key coordinator --certificate localhost
key berlin
key lyon
key oslo
site --check berlin.toml
site --check lyon.toml
site --check oslo.toml
LINES
grep -vE "^  [a-z_]+ = " check.txt
told "What leaves: sums over sites, masked" check.txt
told "never: patient, postcode" check.txt
told "approve = 'ask'" check.txt

say "The hospitals join"
for name in berlin lyon oslo; do
    "$python" -m auqadmm site "$name.toml" 2>"$name.log" &
    started+=($!)
done

say "A request that is refused: postcodes"
if auqadmm fit --sites sites.toml --data heart --family binomial --target sick --features age,postcode --out no \
    2>refused.log; then
    echo "postcodes were given out" >&2
    exit 1
fi
sentence="the data set 'heart' has no column 'postcode' for others to use"
echo "at the coordinator:"
grep -F "$sentence" refused.log || exit 1
echo "at Lyon:"
grep -F "$sentence" lyon.log || exit 1

say "The fit; somebody at Oslo reads the plan and says yes"
auqadmm fit --sites sites.toml --data heart --family binomial --target sick --inference --exponentiate --out study \
    >study.txt 2>study.log &
fit=$!
started+=("$fit")
within compgen -G "oslo.state/plans/*.json"
run=$(basename oslo.state/plans/*.json .json)
run=${run:0:8}
printf '%s\n' "site plans oslo.toml" "site approve $run oslo.toml" | commands | tee plans.txt
told "$run" plans.txt
told "target sick" plans.txt
wait "$fit" || exit 1
cat study.txt
told "Converged" study.txt

say "What left Lyon in that run"
commands <<'LINES' >audit.txt
site --audit lyon-sent.jsonl
fit berlin.csv lyon.csv oslo.csv --family binomial --target sick --features age,bmi,smoker,stage --inference --exponentiate --quiet --out pooled
LINES
grep -E "^time|  $run  " audit.txt | sed -E "s/ {3,}/  /g" | cut -c 1-160
"$python" - "$run" <<'PYTHON'
import json
import sys

lines = [line for line in map(json.loads, open("lyon-sent.jsonl")) if line["run"].startswith(sys.argv[1])]
sums = [line for line in lines if line["request"] in ("sum", "add")]
assert sums and all(line["masked"] for line in sums), "a sum left without a mask"
assert not any(line["error"] for line in lines), "something failed"
print(f"{len(lines)} messages, {sum(line['bytes'] for line in lines)} bytes; all {len(sums)} sums were masked.")
PYTHON

say "The same model, of all rows in one place"
"$python" - <<'PYTHON'
import json

import numpy as np

fits = [json.load(open(f"{name}/summary.json"))["inference"] for name in ("study", "pooled")]
assert fits[0]["names"] == fits[1]["names"], "other columns"
off = {}
for what, of in {"coefficients": lambda t: np.log(t["ratio"]), "standard errors": lambda t: np.array(t["se"])}.items():
    a, b = (of(fit["table"]) for fit in fits)
    off[what] = float(np.max(np.abs(a - b) / np.abs(b)))
    print(f"largest relative difference of {what}: {off[what]:.1e}")
if max(off.values()) > 1e-10:
    raise SystemExit("the fits differ")
PYTHON
say "All as told"
