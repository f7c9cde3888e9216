#!/usr/bin/env bash
# The wheel and the sdist of `make wheel`, tried as a stranger would: in an environment and a folder that are new.
#
#     tools/try_wheel.sh [FOLDER]     dist/ if none is named; PYTHON=python3.12 chooses the interpreter
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
dist=$(cd "${1:-$root/dist}" && pwd)
wheel=$(echo "$dist"/auqadmm-*.whl) sdist=$(echo "$dist"/auqadmm-*.tar.gz)
for file in "$wheel" "$sdist"; do
    test -f "$file" || { echo "There must be one wheel and one sdist in $dist; run make wheel." >&2; exit 1; }
done
version=$(basename "$wheel" | cut -d- -f2)
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
cd "$new"

echo "== what is inside"
"${PYTHON:-python3}" - "$wheel" "$sdist" <<'PYTHON'
import sys
import tarfile
import zipfile

wheel = zipfile.ZipFile(sys.argv[1]).namelist()
with tarfile.open(sys.argv[2]) as packed:
    sdist = [name.partition("/")[2] for name in packed.getnames()]
tops = {name.partition("/")[0].partition("-")[0] for name in wheel}
assert tops == {"auqadmm"}, f"the wheel holds more than the package: {sorted(tops)}"
assert "auqadmm/py.typed" in wheel, "py.typed is not in the wheel"
for asset in ("page.css", "page.js", "live.css", "live.js"):
    assert f"auqadmm/report/assets/{asset}" in wheel, f"{asset} of the report is not in the wheel"
assert any(name.endswith("/licenses/LICENSE") for name in wheel), "the licence is not in the wheel"
of_package = sorted(name for name in wheel if name.startswith("auqadmm/"))
assert of_package == sorted(n[4:] for n in sdist if n.startswith("src/auqadmm/") and "." in n.rpartition("/")[2])
for folder in ("tests/", "results/", "docs/", "benchmarks/"):
    assert not [name for name in wheel + sdist if name.startswith(folder)], f"{folder} was packed"
assert not [name for name in wheel + sdist if "__pycache__" in name]
print(f"{len(of_package)} files of the package, py.typed among them; sdist {len(sdist)} entries")
PYTHON

echo "== a clean environment"
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --upgrade pip
env/bin/python -m pip install --quiet -c "$root/constraints.txt" torch
env/bin/python -m pip install --quiet -c "$root/constraints.txt" "$wheel"
env/bin/python -m pip check

echo "== commands"
test "$(env/bin/auqadmm --version)" = "auqadmm $version"
env/bin/auqadmm --version
env/bin/auqadmm demo --help >help.txt
head -n 4 help.txt

echo "== a fit"
env/bin/python - "$version" <<'PYTHON'
import sys

import auqadmm as aq
from sklearn.datasets import load_digits

X, y = load_digits(return_X_y=True)
model = aq.ConsensusLogisticRegression(C=1.0).fit(X / 16, y, sites=y)
print(model.status_, model.score(X / 16, y), aq.__file__)
assert model.status_ == "converged" and model.score(X / 16, y) > 0.97
assert aq.__version__ == sys.argv[1] and "/env/" in aq.__file__
PYTHON
echo "== $(basename "$wheel") works"
