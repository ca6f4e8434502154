"""The alarm: silent while nothing moves, quick when something does, and honest about what it cannot see."""

from dataclasses import replace

import numpy as np
import pytest
from worlds import score_outputs

import reprior as rp
from reprior import InputError
from reprior.online.alarm import SAMPLES_PER_BET, Alarm
from reprior.online.alarm_table import AlarmTable
from reprior.online.bets import log_bets, mean_bounds
from reprior.online.ebls import OnlineEbls
from reprior.online.stream import Stream
from reprior.online.table import StreamTable

K = 8
PRIOR = np.array([0.35, 0.2, 0.15, 0.1, 0.08, 0.06, 0.04, 0.02])
HALVED = np.append(PRIOR[:1] / 2, PRIOR[1:]) / (1 - PRIOR[0] / 2)


def outputs(n, prior, rng, sharp=2.5):
    """Calibrated outputs of a classifier trained under PRIOR, for rows drawn under `prior`."""
    y = rng.choice(K, n, p=prior)
    return score_outputs(rng, y, K, sharp, PRIOR), y


def source(rng, n=1500):
    return rp.summarize(*outputs(n, PRIOR, rng))


def watched(alarm, rows):
    return alarm.watch(Stream("online-ebls", alarm.source), rows)


@pytest.mark.parametrize("mode", ["ever", "monitor"])
def test_silent_streams_raise_no_alarm(mode):
    raised = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        raised += bool(watched(Alarm(source(rng, 400), mode=mode), outputs(800, PRIOR, rng)[0]))
    assert raised <= 2  # of 30 at 1 %, more than 2 has a chance of 1 in 300


def test_without_the_margin_an_estimated_prior_makes_false_alarms():
    raised = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        raised += bool(watched(Alarm(source(rng, 200), mode="ever", exact=True), outputs(3000, PRIOR, rng)[0]))
    assert raised >= 6


@pytest.mark.parametrize("mode", ["ever", "monitor"])
def test_a_halved_head_class_is_found_with_its_time_and_class(mode):
    rng = np.random.default_rng(4)
    alarm = Alarm(source(rng, 3000), mode=mode)
    rows = np.concatenate([outputs(600, PRIOR, rng)[0], outputs(2000, HALVED, rng)[0]])
    verdict = watched(alarm, rows)
    assert verdict
    assert 600 < verdict.raised_at < 2600
    assert 400 < verdict.since < 1300  # it begins when the stream begins to follow
    assert verdict.n == 2600
    assert 0 in verdict.classes


def test_a_late_shift_is_found_no_slower_by_the_monitor():
    rng = np.random.default_rng(1)
    src, other = source(rng), np.roll(PRIOR, 3)
    shifted = outputs(600, other, rng)[0]
    early = watched(Alarm(src), shifted)
    late = watched(Alarm(src), np.concatenate([outputs(3000, PRIOR, rng)[0], shifted]))
    assert early.raised_at < 100
    assert late.raised_at - 3000 < early.raised_at + 100
    assert abs(late.since - 3000) < 100


def test_the_verdict_does_not_depend_on_how_the_rows_come():
    rng = np.random.default_rng(2)
    src = source(rng)
    rows = outputs(500, HALVED, rng)[0]
    whole, pieces = Alarm(src), Alarm(src)
    stream, other = Stream("online-ebls", src), Stream("online-ebls", src)
    expected = whole.watch(stream, rows)
    at = 0
    for size in (1, 7, SAMPLES_PER_BET, 100, 3, 373):
        verdict = pieces.watch(other, rows[at : at + size])
        at += size
    assert at == 500
    assert verdict.n == expected.n
    assert verdict.evidence == pytest.approx(expected.evidence, abs=1e-9)
    assert (verdict.raised_at, verdict.since) == (expected.raised_at, expected.since)
    np.testing.assert_array_equal(stream.prior, other.prior)


def test_no_bet_can_be_expected_to_gain_under_the_reference():
    rng = np.random.default_rng(3)
    src = source(rng, 300)
    alarm = Alarm(src, mode="ever")
    fresh = outputs(50_000, PRIOR, rng)[0]
    for prior in (HALVED, src.prior, rng.dirichlet(np.ones(K)), np.eye(K)[7]):
        assert np.exp(log_bets(alarm.plan, fresh, prior)).mean(axis=0).max() < 1 + 1e-12


def test_mean_bounds_hold_for_few_rows_and_close_in():
    low, high = mean_bounds(np.array([1e-12, 0.01, 0.5, 1 - 1e-12]), 200, np.log(1 / 0.01))
    assert high[0] == pytest.approx(1 - 0.01 ** (1 / 200), rel=1e-2)  # no success in 200
    assert (low <= [1e-12, 0.01, 0.5, 1]).all()
    assert (high >= [1e-12, 0.01, 0.5, 1 - 1e-12]).all()
    wide, narrow = (mean_bounds(np.array([0.1]), n, 5.0) for n in (100, 10_000))
    assert narrow[1] - narrow[0] < (wide[1] - wide[0]) / 5


def test_a_reference_window_can_stand_in_for_the_source():
    rng = np.random.default_rng(4)
    src = source(rng)
    now = np.roll(PRIOR, 2)
    quiet = outputs(1500, now, rng)[0]
    assert watched(Alarm(src), outputs(600, now, rng)[0])  # it has left the source
    alarm = Alarm(src, reference=quiet)
    assert not watched(alarm, outputs(1500, now, rng)[0])  # but not the reference
    assert watched(alarm, outputs(1000, np.roll(PRIOR, 5), rng)[0])
    alarm.reset()
    assert not alarm.verdict
    assert alarm.verdict.n == 0


def test_it_says_what_it_can_and_cannot_see():
    rng = np.random.default_rng(5)
    small, large = Alarm(source(rng, 200)), Alarm(source(rng, 20_000))
    assert small.delay(HALVED) == np.inf  # as a test of 200 rows must be
    observed = large.delay(HALVED)
    assert 20 < observed < 400
    assert large.delay(PRIOR) == np.inf
    for (fall, rise), share in ((large.smallest(), 1.0), (small.smallest(), 1.0)):
        assert (fall < share).all()
        assert (rise > share).all()
    assert large.smallest()[0][0] > 0.7  # a fall of the head class to 0.7 of its share is seen
    assert small.smallest()[0][7] == 0.0  # not even the absence of a class with four rows
    delays = []
    for seed in range(9):
        rng = np.random.default_rng(seed)
        verdict = watched(Alarm(large.source), outputs(1500, HALVED, rng)[0])
        delays.append(verdict.raised_at or np.inf)
    assert np.median(delays) < 3 * observed


def test_it_goes_on_from_its_bytes():
    rng = np.random.default_rng(6)
    src = source(rng)
    rows = outputs(900, HALVED, rng)[0]
    alarm = Alarm(src)
    stream = Stream("online-ebls", src)
    alarm.watch(stream, rows[:405])
    again, stream_again = Alarm.from_bytes(alarm.to_bytes()), Stream.from_bytes(stream.to_bytes())
    assert again.verdict == alarm.verdict
    assert again.watch(stream_again, rows[405:]) == alarm.watch(stream, rows[405:])
    with pytest.raises(InputError, match=r"^Alarm.delay: `alarm` must have reference samples"):
        again.delay(HALVED)
    with pytest.raises(InputError, match="must hold a 'alarm'"):
        Alarm.from_bytes(stream.to_bytes())


def test_bad_input_is_refused_and_changes_nothing():
    rng = np.random.default_rng(7)
    src = source(rng)
    alarm, stream = Alarm(src), Stream("online-ebls", src)
    rows = outputs(50, PRIOR, rng)[0]
    alarm.watch(stream, rows)
    before, bytes_before = alarm.verdict, alarm.to_bytes()
    bad = rows.copy()
    bad[40, 0] = np.nan
    with pytest.raises(InputError, match=r"^Alarm.watch: `proba` must contain only finite numbers"):
        alarm.watch(stream, bad)
    with pytest.raises(InputError, match=rf"^Alarm.look: `prior` must have {K} classes"):
        alarm.look(rows, [0.5, 0.5])
    assert alarm.verdict == before
    assert alarm.to_bytes() == bytes_before
    assert stream.n == 50
    with pytest.raises(InputError, match=r"Use `pipe\.source`"):
        Alarm(PRIOR)
    with pytest.raises(InputError, match="`mode` must be one of 'monitor', 'ever'"):
        Alarm(src, mode="always")
    assert not Alarm(PRIOR, exact=True).verdict


def test_any_online_method_can_be_bet_on():
    rng = np.random.default_rng(8)
    src = source(rng)
    rows = outputs(400, np.roll(PRIOR, 3), rng)[0]
    for name in ("online-fmapls", "fth"):
        assert Alarm(src).watch(Stream(name, src), rows)
    method = OnlineEbls(src)
    assert Alarm(src).look(rows, method.prior(method.init()))  # the class bets need no stream at all


@pytest.mark.parametrize("mode", ["monitor", "ever"])
def test_a_reference_of_one_class_alone_is_one(mode):
    certain = np.tile([1.0, 0.0], (200, 1))
    for alarm in (Alarm([1, 1], reference=certain, mode=mode), Alarm([1 - 1e-17, 1e-17], exact=True, mode=mode)):
        assert not alarm.look(certain, [0.5, 0.5])
        assert np.isfinite(alarm.verdict.evidence)
        assert alarm.look(certain[:, ::-1], [0.5, 0.5])
        assert np.isfinite(alarm.verdict.evidence)


@pytest.mark.parametrize("n", [200, 3000])
def test_the_smallest_shift_is_where_the_delay_becomes_finite(n):
    alarm = Alarm(source(np.random.default_rng(5), n))
    mean = alarm.plan.mean

    def delay(k, factor):
        prior = mean * (1 - factor * mean[k]) / (1 - mean[k])
        prior[k] = factor * mean[k]
        return alarm.delay(prior)

    fall, rise = alarm.smallest()
    for k in range(K):
        if fall[k] > 0:
            assert delay(k, 0.98 * fall[k]) < np.inf
        assert delay(k, min(1.02 * fall[k], 1.0)) == np.inf  # with 0: not even its absence is seen
        if rise[k] < np.inf:
            assert delay(k, 1.02 * rise[k]) < np.inf
        assert delay(k, min(0.98 * rise[k], 0.999 / mean[k])) == np.inf
    assert (fall > 0).any()
    assert (rise < np.inf).any()


def test_times_and_names_are_told_where_they_are_known():
    rng = np.random.default_rng(1)
    src = replace(source(rng, 3000), classes=tuple("abcdefgh"))
    rows = np.concatenate([outputs(500, PRIOR, rng)[0], outputs(1000, np.roll(PRIOR, 3), rng)[0]])
    times = 1.7e9 + np.cumsum(rng.random(len(rows)))
    whole, pieces, silent = Alarm(src), Alarm(src), Alarm(src)
    verdict = whole.watch(Stream("online-ebls", src), rows, times)
    assert verdict.names == tuple("abcdefgh"[k] for k in verdict.classes)
    assert verdict.names
    assert verdict.since_time == times[verdict.since - 1]
    assert verdict.raised_time == times[verdict.raised_at - 1]
    stream = Stream("online-ebls", src)
    for first in range(0, len(rows), 37):
        pieces.watch(stream, rows[first : first + 37], times[first : first + 37])
        pieces = Alarm.from_bytes(pieces.to_bytes())
    assert replace(pieces.verdict, evidence=0.0) == replace(verdict, evidence=0.0)
    message = silent.watch(Stream("online-ebls", src), rows)
    assert (message.since, message.since_time, message.raised_time) == (verdict.since, None, None)
    for bad, sentence in (
        (times[:-1], r"have shape \(1500,\)"), (times[::-1], "never decrease"), (times * np.nan, "be finite"),
        (times.astype("datetime64[s]"), "be numbers.*Pass seconds"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"Alarm.watch: `times` must {sentence}"):
            silent.watch(Stream("online-ebls", src), rows, bad)


def test_each_key_has_its_own_alarm(tmp_path):
    rng = np.random.default_rng(3)
    src = source(rng, 3000)
    rows = {"well": outputs(600, PRIOR, rng)[0], 7: outputs(600, HALVED, rng)[0]}
    keys = ["well", 7] * 600
    mixed = np.stack([rows["well"], rows[7]], axis=1).reshape(-1, K)
    alarms, table = AlarmTable(src), StreamTable("online-ebls", src, share=False)
    for first in range(0, 1200, 111):
        verdict = alarms.watch(table, keys[first : first + 111], mixed[first : first + 111])
        alarms.save(tmp_path / "alarms", b"key")
        alarms = rp.load(tmp_path / "alarms", b"key")
    for key, own in rows.items():
        one, stream = Alarm(src), Stream("online-ebls", src)
        for first in range(0, 600, 50):
            one.watch(stream, own[first : first + 50])
        assert alarms[key].raised_at == one.verdict.raised_at
        assert alarms[key].evidence == pytest.approx(one.verdict.evidence, rel=1e-9)
        np.testing.assert_array_equal(table[key].prior, stream.prior)
    assert verdict[7]
    assert not verdict["well"]
    assert (len(alarms), "well" in alarms, set(alarms)) == (2, True, set(rows))
    alarms.reset(7)
    with pytest.raises(KeyError):
        alarms[7]
    with pytest.raises(InputError, match=r"AlarmTable.watch: `keys` must name the stream of each of 5 rows; got 4"):
        alarms.watch(table, ["a"] * 4, mixed[:5])


def test_an_alarm_says_how_it_stands():
    alarm = rp.Alarm([1, 1], exact=True)
    assert repr(alarm) == "Alarm(mode='monitor', 2 classes, n=0, not raised)"
    verdict = alarm.look([[0.9, 0.1]] * 200, [0.9, 0.1])
    assert repr(alarm) == f"Alarm(mode='monitor', 2 classes, n=200, raised at sample {verdict.raised_at})"
    table, alarms = rp.StreamTable("online-ebls", [1, 1]), rp.AlarmTable([1, 1], exact=True)
    alarms.watch(table, ["a", "b"] * 100, [[0.9, 0.1], [0.5, 0.5]] * 100)
    assert repr(alarms) == "AlarmTable(2 keys, 1 raised)"


def test_a_bet_that_stays_flat_does_not_date_a_shift_back():
    """Outputs that differ from the reference by rounding gain next to nothing: the shift began when bets gained."""
    rng = np.random.default_rng(0)
    before = np.tile([0.5 + 1e-7, 0.5 - 1e-7], (3000, 1))
    after = np.where(rng.random(400)[:, None] < 0.9, [0.9, 0.1], [0.1, 0.9])
    by_chance = np.tile([0.52, 0.48], (4, 1))
    for gained in (False, True):
        alarm = Alarm([1, 1], exact=True, run_length=1e6)
        if gained:
            alarm.look(by_chance, [0.5, 0.5])  # a bet on a class gains a little, and then stays flat
        for rows in (before, after):
            alarm.look(rows, [0.5, 0.5])
        assert 2990 <= alarm.verdict.since <= 3100
