"""The alarm's level on real outputs: held-out rows and quiet streams drawn from one population."""

import numpy as np
import pytest

import reprior as rp
from reprior import datasets
from reprior.online.alarm import Alarm


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ever", "monitor"])
def test_at_most_one_percent_of_quiet_streams_raise_an_alarm(mode):
    d = datasets.load("banking77")
    share = np.bincount(d.pool_y, minlength=77) / len(d.pool_y)
    chance = (d.counts / d.counts.sum() / share)[d.pool_y]
    chance /= chance.sum()
    raised = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        held, rows = (rng.choice(len(chance), n, p=chance) for n in (800, 1500))
        source = rp.summarize(d.pool_proba[held], d.pool_y[held])
        raised += bool(Alarm(source, mode=mode).watch(rp.Stream("online-ebls", source), d.pool_proba[rows]))
    assert raised <= 2
