"""Made-up results with known verdicts."""

from auqadmm.paper.bundle import CurveLine

RATES = {"c-admm": 0.8, "rb-admm": 0.8, "ac-admm": 0.9, "uq-admm": 0.7, "auq-admm": 0.5, "auq-lr": 0.1}


def run(
    method: str, rate: float, figure="fig-elastic", panel="mnist", control="", count=20, reading=("defined", "mean")
):
    """A run whose gap shrinks by `rate` in each iteration, from 1."""
    return [
        CurveLine(
            figure=figure,
            panel=panel,
            protocol=reading[0],
            reduction=reading[1],
            dataset=panel.split(",")[0],
            method=method,
            control=control,
            iteration=k,
            rounds=k,
            bytes=1000 * k,
            seconds=0.1 * k,
            objective=10 + 10 * rate**k,
            gap=rate**k,
            primal=rate**k,
            dual=rate**k,
        )
        for k in range(1, count + 1)
    ]


def comparison(figure="fig-elastic", auq=0.5, control=0.8, reading=("defined", "mean"), panel="mnist"):
    lines = [
        line for m, rate in (RATES | {"auq-admm": auq}).items() for line in run(m, rate, figure, panel, reading=reading)
    ]
    for method, words in (
        ("c-admm-a", "rho = a"),
        ("auq-permuted", "weights permuted"),
        ("auq-mean", "weights averaged"),
    ):
        lines += run(method, control, figure, panel, words, reading=reading)
    return lines
