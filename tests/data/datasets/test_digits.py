from __future__ import annotations

import subprocess
import sys

from condenset.data import load


def test_digits_are_split_per_class_and_scaled_exactly() -> None:
    from sklearn.datasets import load_digits

    splits = load("digits")
    raw = load_digits()
    assert len(splits.train) + len(splits.test) == 1797
    assert splits.train.images.shape[1:] == (1, 8, 8) and not splits.train.allow_hflip
    for label, (train, test) in enumerate(zip(splits.train.class_counts, splits.test.class_counts, strict=True)):
        assert test == -(-(train + test) // 5) and train + test == (raw.target == label).sum()
    zeros = raw.images[raw.target == 0]
    expected = [[round(float(v) * 255 / 16) for v in row] for row in zeros[0]]
    assert splits.test.images[0, 0].tolist() == expected
    assert [splits.train.images.min(), splits.train.images.max()] == [0, 255]
    assert "every fifth" in splits.test.source


def test_scikit_learn_is_not_imported() -> None:
    script = "import sys, condenset as cs; cs.load('digits'); print('sklearn' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "False\n"
