"""The digits, split by class."""

import numpy as np

from auqadmm.comparison import digits_blocks, digits_elastic_net, digits_multinomial


def test_each_worker_holds_one_digit():
    blocks = digits_blocks()
    assert sum(len(y) for _, y in blocks) == 1797
    for digit, (X, y) in enumerate(blocks):
        assert X.shape == (len(y), 64)
        assert set(y) == {digit}
        assert X.min() == 0.0
        assert X.max() == 1.0


def test_problems():
    assert digits_multinomial().census.unknowns == 640
    assert np.array_equal(digits_multinomial().classes, np.arange(10))
    assert digits_elastic_net().census.unknowns == 64
