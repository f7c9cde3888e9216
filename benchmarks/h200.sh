#!/bin/sh
# The measurements behind results/ on one NVIDIA H200. Needs python >= 3.10, torch, numpy and scipy, 16 cores, and the packs
# that `python benchmarks/workloads.py pack carry` makes elsewhere (58 MiB).
#
#   sh benchmarks/h200.sh rounds COMMIT OUT     every workload and method, 15 processes side by side: at most 570 s
#   sh benchmarks/h200.sh paper COMMIT OUT      every run of the paper's figures, 15 processes side by side (paper.tgz)
#   sh benchmarks/h200.sh auto COMMIT OUT       auto beside single methods, 15 processes side by side (auto.json)
#   sh benchmarks/h200.sh alone COMMIT OUT      seconds of a few methods, one after the other: at most 190 s
#   sh benchmarks/h200.sh verdict COMMIT OUT    what a verdict costs (verdict.json)
#   sh benchmarks/h200.sh speed COMMIT OUT      seconds of iterations, growth, memory (h200.json); minutes, rows kept
#   sh benchmarks/h200.sh vstep COMMIT OUT      the consensus step (vstep.json)
#
# OUT gets few files; finished rows are there whenever this is stopped. Processes side by side share the GPU by CUDA's
# multi-process service where there is one: their kernels then run at the same time, and not in turns.
set -eu
part=$1 commit=$2 out=$3
cd "$(dirname "$0")/.."
export AUQADMM_DATA="${AUQADMM_DATA:-carry}" PYTHONPATH=src PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
device=${DEVICE:-cuda} python=${PYTHON:-python3} processes=${PROCESSES:-15}

shared_gpu() {
    command -v nvidia-cuda-mps-control >/dev/null || return 0
    CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d) CUDA_MPS_LOG_DIRECTORY=$(mktemp -d)
    export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    nvidia-cuda-mps-control -d
    trap 'echo quit | nvidia-cuda-mps-control >/dev/null' EXIT
}

case $part in
rounds)
    shared_gpu
    "$python" benchmarks/side_by_side.py --device "$device" --commit "$commit" --out "$out" \
        --processes "$processes" --deadline "${DEADLINE:-540}" ${ONLY:+--workloads $ONLY} ${PICK:+--groups $PICK}
    ;;
paper)
    shared_gpu
    "$python" -m auqadmm.paper.run --figure all --device "$device" --data "$AUQADMM_DATA" --out "${RUNS:-runs/paper}" \
        --jobs "$processes" --deadline "${DEADLINE:-480}" ${ONLY:+--only $ONLY} || true
    tar czf "$out/paper.tgz" -C "${RUNS:-runs/paper}" .
    ;;
auto)
    shared_gpu
    # shellcheck disable=SC2086  # ONLY may name several
    "$python" benchmarks/auto.py --workloads ${ONLY:-"mnist-*" "svhn-*" "cifar10-*"} --device "$device" --commit "$commit" \
        --jobs "$processes" --seconds "${SECONDS_EACH:-25}" --deadline "${DEADLINE:-300}" --out "$out/auto.json"
    ;;
alone)
    "$python" benchmarks/side_by_side.py --device "$device" --commit "$commit" --out "$out" \
        --alone --deadline "${DEADLINE:-180}" ${ONLY:+--workloads $ONLY}
    ;;
verdict)
    # shellcheck disable=SC2086  # ONLY may name several
    "$python" benchmarks/verdict.py --device "$device" --commit "$commit" --repeats "${REPEATS:-7}" --max-seconds 12 \
        --workloads ${ONLY:-"mnist-*-mean" "mnist-*-sum" mnist-svm "svhn-*" "cifar10-*"} --out "$out/verdict.json"
    ;;
speed)
    OMP_NUM_THREADS=16 "$python" benchmarks/speed.py --device "$device" --commit "$commit" --threads 16 --out "$out" \
        --parts ceilings roofline iteration gap accuracy growth uneven single memory
    ;;
vstep)
    "$python" benchmarks/vstep.py --device "$device" --commit "$commit" --out "$out/vstep.json" ${ONLY:+--workload $ONLY}
    ;;
*)
    echo "rounds, paper, auto, alone, verdict, speed or vstep?" >&2
    exit 2
    ;;
esac
