"""What all tests share: settings of hypothesis, and a small problem."""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small products: threads would only wait for each other

import pytest
from hypothesis import settings
from worlds import Problem, make_problem

settings.register_profile("default", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("default")


@pytest.fixture
def problem() -> Problem:
    return make_problem()
