"""A calibrator stored in the first format stays readable."""

from pathlib import Path

import numpy as np

from reprior.rows.calibrated import Calibrator


def test_bytes_of_release_0_1():
    cal = Calibrator.from_bytes((Path(__file__).parent / "calibrator-0.1.bin").read_bytes())
    assert (cal.kind, cal.floor, cal.n, cal.log_likelihood) == ("bias-corrected", 1e-9, 120, -0.75)
    z = 0.5 * np.log([0.2, 0.3, 0.5]) + [-0.25, 0.0, 0.25]
    np.testing.assert_allclose(cal([[0.2, 0.3, 0.5]])[0], np.exp(z) / np.exp(z).sum())
