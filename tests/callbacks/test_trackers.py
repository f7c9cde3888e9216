"""TensorBoard and MLflow: what is written is read back by the programs themselves."""

import sys

import pytest

import auqadmm as aq
from tests.problems import least_squares


def run(callback, **options):
    return aq.solve(least_squares(), "c-admm", max_iter=7, abs_tol=0, rel_tol=0, callbacks=[callback], **options)


def scalars(folder, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_reads_what_was_written(tmp_path):
    with aq.callbacks.TensorBoard(tmp_path / "runs" / "a") as board:
        rows = []
        run(lambda event: rows.append(event.row) or board(event), certificate_tol=0, evaluate_every=2)
    for name in ("primal_residual", "eps_dual", "rounds", "bytes", "hvps", "seconds"):
        wanted = [(row.iteration, pytest.approx(getattr(row, name), rel=1e-6)) for row in rows]
        assert scalars(tmp_path / "runs" / "a", f"auqadmm/{name}") == wanted
    known = [(row.iteration, pytest.approx(row.objective)) for row in rows if row.objective is not None]
    assert [k for k, _ in known] == [2, 4, 6]
    assert scalars(tmp_path / "runs" / "a", "auqadmm/objective") == known


def test_tensorboard_shows_a_run_that_is_still_running(tmp_path):
    board = aq.callbacks.TensorBoard(tmp_path, prefix="fit/")
    run(board)
    assert len(scalars(tmp_path, "fit/kkt")) == 7  # not closed, and all of it there
    board.close()
    board.close()
    with pytest.raises(ValueError, match="is closed; make a new one"):
        run(board)


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"TensorBoard cannot write to .*file/x: Not a directory\."):
        aq.callbacks.TensorBoard(tmp_path / "file" / "x")


@pytest.mark.parametrize(
    ("package", "modules", "make"),
    [
        ("tensorboard", ["tensorboard.compat.proto.event_pb2"], lambda: aq.callbacks.TensorBoard("x")),
        ("mlflow", ["mlflow"], lambda: aq.callbacks.MLflow()),
    ],
)
def test_a_missing_package_is_one_sentence_with_the_remedy(package, modules, make, monkeypatch):
    for name in modules:
        monkeypatch.setitem(sys.modules, name, None)  # as Python itself marks what cannot be imported
    with pytest.raises(ImportError) as caught:
        make()
    name = {"tensorboard": "TensorBoard", "mlflow": "MLflow"}[package]
    assert str(caught.value) == f"callbacks.{name} needs {package}: pip install 'auqadmm[{package}]'."


def test_mlflow_reads_what_was_written(tmp_path, monkeypatch):
    """With mlflow-skinny and its store of files; it comes with thirty packages, so that few have it."""
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    uri = (tmp_path / "runs").as_uri()
    with aq.callbacks.MLflow("digits", run_name="first", tracking_uri=uri) as tracker:
        rows = []
        run(lambda event: rows.append(event.row) or tracker(event))
    client = MlflowClient(tracking_uri=uri)
    found = client.get_run(tracker.run_id)
    assert (found.info.run_name, found.info.status) == ("first", "FINISHED")
    assert found.data.tags["auqadmm.method"] == "c-admm"
    for name in ("objective", "kkt", "rounds"):
        wanted = [(row.iteration, float(getattr(row, name))) for row in rows]
        assert [(m.step, m.value) for m in client.get_metric_history(tracker.run_id, name)] == wanted
    again = aq.callbacks.MLflow(run_id=tracker.run_id, tracking_uri=uri)
    run(again)
    again.close()
    assert len(client.get_metric_history(tracker.run_id, "kkt")) == 14
    with pytest.raises(RuntimeError), aq.callbacks.MLflow("digits", tracking_uri=uri) as failing:
        raise RuntimeError
    assert client.get_run(failing.run_id).info.status == "FAILED"
