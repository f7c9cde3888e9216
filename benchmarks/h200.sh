#!/bin/sh
# The measurements behind results/ on one NVIDIA H200. Needs python >= 3.10, torch, numpy and scipy, 16 cores, and the packs
# that `python benchmarks/workloads.py pack carry` makes elsewhere (58 MiB).
#
#   sh benchmarks/h200.sh rounds COMMIT OUT     every workload and method, 15 processes side by side: at most 570 s
#   sh benchmarks/h200.sh alone COMMIT OUT      seconds of a few methods, one after the other: at most 190 s
#   sh benchmarks/h200.sh speed COMMIT OUT      seconds of iterations, growth, memory (h200.json); minutes, rows kept
#
# OUT gets few files; finished rows are there whenever this is stopped.
set -eu
part=$1 commit=$2 out=$3
cd "$(dirname "$0")/.."
export AUQADMM_DATA="${AUQADMM_DATA:-carry}" PYTHONPATH=src PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
device=${DEVICE:-cuda} python=${PYTHON:-python3}
case $part in
rounds)
    "$python" benchmarks/side_by_side.py --device "$device" --commit "$commit" --out "$out" \
        --processes "${PROCESSES:-15}" --deadline "${DEADLINE:-540}" ${ONLY:+--workloads $ONLY} ${PICK:+--groups $PICK}
    ;;
alone)
    "$python" benchmarks/side_by_side.py --device "$device" --commit "$commit" --out "$out" \
        --alone --deadline "${DEADLINE:-180}" ${ONLY:+--workloads $ONLY}
    ;;
speed)
    OMP_NUM_THREADS=16 "$python" benchmarks/speed.py --device "$device" --commit "$commit" --threads 16 --out "$out" \
        --parts ceilings roofline iteration gap accuracy growth uneven single memory
    ;;
*)
    echo "rounds, alone or speed?" >&2
    exit 2
    ;;
esac
