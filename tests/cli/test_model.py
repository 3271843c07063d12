# SPDX-License-Identifier: Apache-2.0
"""The images are what they should be."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from hopsum_evaluation.demo import digits_network as model


def test_fashion_reads_idx_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    contents = {
        "train-images-idx3": rng.integers(0, 256, (20, 28, 28), np.uint8),
        "train-labels-idx1": rng.integers(0, 10, 20, np.uint8),
        "t10k-images-idx3": rng.integers(0, 256, (6, 28, 28), np.uint8),
        "t10k-labels-idx1": rng.integers(0, 10, 6, np.uint8),
    }
    for name, array in contents.items():
        sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
        data = bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()
        (tmp_path / f"{name}-ubyte.gz").write_bytes(gzip.compress(data))
    monkeypatch.setattr(model, "FASHION", tmp_path)
    images = model.load_images("fashion")
    assert np.array_equal(images.train_x.numpy()[:, 0] * 255, contents["train-images-idx3"])
    assert images.test_y.tolist() == contents["t10k-labels-idx1"].tolist()
