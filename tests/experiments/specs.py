"""Small specs on scikit-learn's digits, and a store for them."""

from auqadmm.paper.spec import ProblemSpec, RunSpec

ELASTIC = ProblemSpec("digits", "elastic")


def run_spec(method: str = "c-admm", iterations: int = 3, problem: ProblemSpec = ELASTIC, **options) -> RunSpec:
    values = {"protocol": "defined", "start": "zeros", "local": "auto", "rank": 5} | options
    return RunSpec(problem, method, iterations=iterations, **values)
