"""Arrays that pictures are drawn from."""

import numpy as np
import pytest

from auqadmm.paper import pictures
from auqadmm.paper.spec import Denoising, ProblemSpec, Samples, WeightImages


@pytest.fixture(scope="module")
def denoised():
    return pictures.compute(Denoising(size=16))


def test_as_printed_the_weights_are_constant(denoised):
    assert np.ptp(denoised["printed_W"]) == 0
    ratio = denoised["printed_v_weighted"] / denoised["printed_v_plain"]
    assert np.allclose(ratio, ratio.flat[0], rtol=1e-4)  # the averages agree up to a factor


def test_with_masks_the_averages_are_those_of_the_formula(denoised):
    b, eta = denoised["noisy"], 1e-3
    assert np.allclose(denoised["masked_v_weighted"], 0.5 * b / (1.3 + eta), atol=1e-5)
    assert np.allclose(denoised["masked_v_plain"], 0.5 * b / (4 + eta), atol=1e-5)
    assert np.allclose(denoised["masked_v_lanczos_signs"], denoised["masked_v_weighted"], atol=1e-5)
    inside = np.zeros((16, 16), bool)
    inside[:8, :8] = True
    assert np.allclose(denoised["masked_W"][0], np.where(inside, 1.0, 0.1), atol=1e-6)
    assert np.allclose(denoised["masked_u"][0], np.where(inside, b / 2, 0), atol=1e-5)


def test_samples():
    found = pictures.compute(Samples("digits", count=3))
    assert found["images"].shape == (3, 10, 8, 8)
    assert found["images"].max() == 255
    assert found["classes"].tolist() == list(range(10))


@pytest.mark.parametrize(("model", "columns"), [("elastic", 1), ("multinomial", 10)])
def test_weights_lie_in_the_interval_of_their_iteration(model, columns):
    spec = WeightImages(ProblemSpec("digits", model), "defined", "zeros", "auto", 5)
    found = pictures.compute(spec)
    assert found["weights"].shape == (10, 64, columns)
    assert found["weights"].min() >= 0.0999
    assert found["weights"].max() <= 0.1 + 0.9 / 4 + 1e-3
    assert found["averages"].shape == found["energies"].shape == (10, 64)
