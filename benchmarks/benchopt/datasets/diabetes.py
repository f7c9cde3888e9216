"""Diabetes, as it comes with scikit-learn, the target centred."""

from benchopt import BaseDataset
from sklearn.datasets import load_diabetes


class Dataset(BaseDataset):
    name = "diabetes"
    requirements = ["scikit-learn"]

    def get_data(self):
        X, y = load_diabetes(return_X_y=True)
        return {"X": X, "y": y - y.mean()}
