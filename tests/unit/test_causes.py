"""A refusal names the likely cause: each is tested for, and none is named of good data."""

import numpy as np
import pytest
from worlds import score_outputs

import reprior as rp
from reprior.assess.causes import certain, clipped, likely_causes, rounded, share_rounded, unseen


def draw(seed, n, prior, k=4, sharp=2.0):
    rng = np.random.default_rng(seed)
    y = rng.choice(k, n, p=prior)
    return score_outputs(rng, y, k, sharp), y


EVEN, MOVED = [0.25] * 4, [0.5, 0.3, 0.1, 0.1]
HELDOUT, Y = draw(0, 1500, EVEN)
TARGET, _ = draw(1, 3000, MOVED)


def divided(rows):
    return rows / rows.sum(axis=1, keepdims=True)


CHANGES = {
    "are rounded to 2 decimals": lambda x: divided(x.round(2)),
    "are rounded to 1 decimal,": lambda x: divided(x.round(1)),
    "were probabilities replaced by decisions": lambda x: np.eye(4)[x.argmax(axis=1)],
    "look clipped": lambda x: divided(np.maximum(x, 0.02)),
}


@pytest.mark.parametrize("cause", CHANGES)
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_what_was_done_to_new_predictions_is_named(cause, kind):
    pipe = rp.pipeline(HELDOUT.astype(kind), Y)
    est = pipe.estimate(CHANGES[cause](TARGET).astype(kind))
    assert cause in est.checks.causes
    assert cause in str(est)
    other = rp.summarize(CHANGES[cause](HELDOUT).astype(kind), Y)  # the other way round
    assert cause in likely_causes(other, None, rp.ArrayBlocks(TARGET.astype(kind)), len(TARGET))


@pytest.mark.parametrize("seed", range(5))
def test_no_cause_is_named_of_good_data(seed):
    for k, sharp in ((2, 1.0), (4, 2.0), (10, 4.0), (100, 3.0)):
        rng = np.random.default_rng(seed)
        held, y = draw(seed, 1500, rng.dirichlet(np.full(k, 50.0)), k, sharp)
        target, _ = draw(seed + 100, 3000, rng.dirichlet(np.full(k, 50.0)), k, sharp)
        for change in (lambda x: x, lambda x: divided(x.round(2)), lambda x: x.astype(np.float32)):  # on both sides
            pipe = rp.pipeline(change(held), y)
            assert likely_causes(pipe.source, pipe.calibrator, pipe.rows(change(target)), len(target)) == ""


def test_classes_without_held_out_samples_are_named_if_predictions_give_them_much():
    source = rp.summarize(HELDOUT[Y != 3], Y[Y != 3])
    assert unseen(source, TARGET).startswith("1 class has no held-out sample and ")
    assert unseen(rp.summarize(HELDOUT, Y), TARGET) == ""
    assert likely_causes(rp.Source(np.full(4, 0.25)), None, rp.ArrayBlocks(TARGET), 10) == ""


def test_parts():
    assert share_rounded(np.array([[0.25, 0.75], [1.0, 0.0], [0.123, 0.877]]), 2) == 0.5
    assert rounded(TARGET, HELDOUT) == certain(TARGET, HELDOUT) == clipped(TARGET, HELDOUT) == ""
