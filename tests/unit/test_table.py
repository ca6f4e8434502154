"""Many streams in bounded memory."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import numpy as np
import pytest
from worlds import gaussian_outputs

import reprior as rp

ROWS = np.random.default_rng(0).dirichlet([1, 1, 1], 100)


def test_the_least_recently_used_streams_leave_and_can_come_back() -> None:
    left: dict = {}
    table = rp.StreamTable("online-fmapls", [1, 1, 1], max_streams=3, on_evict=left.__setitem__)
    table.learn(["a", "b", "c", "a"], ROWS[:4])
    table.learn(["d"], ROWS[4:5])
    assert set(table) == {"a", "c", "d"}
    assert list(left) == ["b"]
    assert left["b"].n == 1
    expected = rp.Stream("online-fmapls", [1, 1, 1])
    expected.learn_one(ROWS[1])
    assert left["b"].to_bytes() == expected.to_bytes()
    table["b"] = left["b"]  # a and d are newer than c
    assert set(table) == {"a", "b", "d"}
    table.learn(["b"], ROWS[5:6])
    assert table["b"].n == 2


def test_a_full_table_refuses_rather_than_drops() -> None:
    table = rp.StreamTable("online-ebls", [1, 1, 1], max_streams=2)
    table.learn(["a", "b"], ROWS[:2])
    before = table.to_bytes()
    with pytest.raises(rp.InputError, match=r"need at most 2 streams at once; got 3.*on_evict"):
        table.learn(["a", "c"], ROWS[:2])
    assert table.to_bytes() == before
    table.on_evict = lambda key, stream: None
    with pytest.raises(rp.InputError, match="fewer keys at once"):
        table.learn(["c", "d", "e"], ROWS[:3])
    assert table.to_bytes() == before


def test_a_caller_who_cannot_take_a_stream_keeps_it_here() -> None:
    def broken(key, stream):
        raise OSError("disk full")

    table = rp.StreamTable("online-ebls", [1, 1, 1], max_streams=1, on_evict=broken)
    table.learn(["a"], ROWS[:1])
    before = table.to_bytes()
    with pytest.raises(OSError, match="disk full"):
        table.learn(["b"], ROWS[:1])
    assert table.to_bytes() == before


@pytest.mark.parametrize("method", ["online-fmapls", "online-ebls"])
def test_a_bad_row_changes_no_stream_and_makes_none(method: str) -> None:
    table = rp.StreamTable(method, [1, 1, 1])
    table.learn([1, 2, 3], ROWS[:3])
    before = table.to_bytes()
    bad = ROWS[:4].copy()
    bad[2, 1] = np.nan
    for keys in ([1, 2, 3, 1], [1, 2, 3, 4]):
        with pytest.raises(rp.InputError, match=r"StreamTable.learn: `proba` must .* row 2 "):
            table.learn(keys, bad)
    with pytest.raises(rp.InputError, match="name the stream of each of 4 rows; got 3"):
        table.learn([1, 2, 3], ROWS[:4])
    with pytest.raises(rp.InputError, match="name the stream of each"):
        table.correct([1, 2, 3], ROWS[:4])
    assert table.to_bytes() == before


def test_it_grows_and_keeps_what_it_has() -> None:
    table = rp.StreamTable("online-fmapls", [1, 1, 1], max_streams=300)
    for key in range(300):
        table.learn([key], ROWS[key % 100][None])
    assert len(table) == 300
    stream = rp.Stream("online-fmapls", [1, 1, 1])
    stream.learn_one(ROWS[17])
    assert table[117].to_bytes() == stream.to_bytes()


def test_top_k_rows_late_labels_and_leaving() -> None:
    table = rp.StreamTable("online-fmapls", [1, 1, 1])
    index, value = np.array([[0], [2], [0]]), np.array([[0.9], [0.8], [0.7]])
    table.learn(["a", "b", "a"], (index, value))
    table.learn(["a", "b", "a"], (index.astype(np.int32), value.astype(np.float32).astype(float)))
    stream = rp.Stream("online-fmapls", [1, 1, 1])
    for row in (0, 2):
        stream.learn_many((index[[row]], value[[row]]))
    assert table["a"].n == 4
    table.observe("a", ROWS[0], 1)
    assert table["a"].prior[1] > stream.prior[1] / 2
    assert "a" in table
    assert table.pop("a").n == 4
    assert "a" not in table
    np.testing.assert_allclose(table.correct(["a"], ROWS[:1]), ROWS[:1])  # a new stream's prior
    with pytest.raises(rp.InputError, match=r"be of OnlineFmapls.*another source or calibrator"):
        table["b"] = rp.Stream("online-fmapls", [1, 2, 1])


def test_bytes_keep_the_order_of_use() -> None:
    left: list = []
    table = rp.StreamTable("online-ebls", [1, 1, 1], max_streams=2)
    table.learn(["old", "new"], ROWS[:2])
    back = rp.StreamTable.from_bytes(table.to_bytes(), on_evict=lambda key, stream: left.append(key))
    back.learn(["newer"], ROWS[:1])
    assert left == ["old"]
    with pytest.raises(rp.InputError, match="hold a 'stream'; got a 'stream-table'"):
        rp.Stream.from_bytes(table.to_bytes())
    odd = rp.StreamTable("online-ebls", [1, 1, 1])
    odd.learn([("a", 1)], ROWS[:1])
    with pytest.raises(rp.InputError, match="strings or whole numbers"):
        odd.to_bytes()


@pytest.mark.parametrize("n", [65, 200])
def test_large_tables_come_back_from_bytes(n: int) -> None:
    table = rp.StreamTable("online-fmapls", [1, 1, 1])
    table.learn(np.arange(n), np.resize(ROWS, (n, 3)))
    back = rp.StreamTable.from_bytes(table.to_bytes())
    assert back.to_bytes() == table.to_bytes()
    assert back[n - 1].to_bytes() == table[n - 1].to_bytes()


@pytest.mark.parametrize("same", [np.int64(1), np.float64(1), 1.0, True, np.uint8(1)])
def test_equal_keys_are_one_stream_whatever_their_type(same) -> None:
    table = rp.StreamTable("online-fmapls", [1, 1, 1])
    table.learn(np.array([0, 1, 2]), ROWS[:3])
    others = [table[key].to_bytes() for key in (0, 2)]
    table.learn([same], ROWS[3:4])
    assert (len(table), table[same].n, same in table) == (3, 2, True)
    assert table.pop(same).n == 2
    assert 1 not in table
    table.learn(["new"], ROWS[:1])  # takes the row that became free
    table.learn(np.array([1]), ROWS[:1])
    assert (table["new"].n, table[1].n) == (1, 1)
    assert table.pop(1).n == 1
    table.learn([same], ROWS[:1])
    table.learn(np.array([0, 1]), ROWS[:2])
    assert [table[key].n for key in (0, 1, 2, "new")] == [2, 2, 1, 1]
    assert table.pop(0).n == 2
    assert table[2].to_bytes() == others[1]


@pytest.mark.parametrize("gap", [None, np.nan, np.datetime64("NaT", "s")])
def test_a_row_without_a_key_is_refused_and_changes_nothing(gap) -> None:
    table = rp.StreamTable("online-ebls", [1, 1, 1])
    table.learn(["a"], ROWS[:1])
    before = table.to_bytes()
    with pytest.raises(rp.InputError, match=r"`keys` must name a stream for every row.*Drop those rows"):
        table.learn(["a", gap], ROWS[:2])
    assert table.to_bytes() == before


def test_times_are_keys_like_any_other() -> None:
    table = rp.StreamTable("online-fmapls", [1, 1, 1])
    day = np.datetime64("2024-02-29")
    table.learn([day, day], ROWS[:2])
    table.learn(np.array([day]), ROWS[:1])
    assert (len(table), table[day].n) == (1, 3)
    days = np.array(["2020-01-01", "2020-01-02"], "datetime64[ns]")  # as pandas has them
    table.learn(days, ROWS[:2])
    table.learn(list(days), ROWS[:2])
    assert (len(table), table[days[0]].n) == (3, 2)


def test_a_table_too_small_says_how_many_streams_are_asked_for() -> None:
    table = rp.StreamTable("online-ebls", [1, 1, 1], max_streams=2)
    with pytest.raises(rp.InputError, match="at most 2 streams at once; got 3"):
        table.learn(["a", "b", "c"], ROWS[:3])
    table.learn(["a", "b"], ROWS[:2])
    table.on_evict = lambda key, stream: None
    with pytest.raises(rp.InputError, match="at most 2 streams at once; got 3"):
        table.learn(["a", "c", "d"], ROWS[:3])


@pytest.mark.parametrize("keys", [3, None, "ab", [["a"], ["b"]], np.array([[1], [2]]), np.array(3), [{}, {}]])
def test_keys_that_are_none_are_refused(keys) -> None:
    table = rp.StreamTable("online-ebls", [1, 1, 1])
    for name in ("learn", "correct"):
        with pytest.raises(rp.InputError, match=rf"^StreamTable.{name}: `keys` must be a list or vector of hashable"):
            getattr(table, name)(keys, ROWS[:2])
    with pytest.raises(rp.InputError, match=r"^StreamTable.observe: `keys`"):
        table.observe([1], ROWS[0], 1)
    with pytest.raises(rp.InputError, match=r"^StreamTable.prior: `key` must be hashable"):
        table.prior([1])
    assert len(table) == 0


def note(key, stream) -> None:
    """Be an `on_evict` that can be pickled."""


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_goes_its_own_way(again) -> None:
    table = rp.StreamTable("online-fmapls", [1, 1, 1], on_evict=note)
    table.learn(["a", "b"], ROWS[:2])
    other = again(table)
    assert other.on_evict is note
    for made, was in ((other, table.to_bytes()), (again(table["a"]), table["a"].to_bytes())):
        assert made.to_bytes() == was
    other.learn(["a"], ROWS[:1])
    assert (table["a"].n, other["a"].n) == (1, 2)
    stream = table["a"]
    twin = again(stream)
    twin.learn_many(ROWS)
    assert (stream.n, twin.n) == (1, 101)


def test_a_key_without_a_stream_is_a_key_error() -> None:
    table = rp.StreamTable("online-ebls", [1, 1, 1])
    for ask in (table.__getitem__, table.prior, table.interval, table.pop):
        with pytest.raises(KeyError, match="nobody"):
            ask("nobody")
    assert "nobody" not in table
    assert len(table) == 0


def test_what_a_table_shows_of_a_stream_cannot_lose_what_is_learned() -> None:
    table = rp.StreamTable("online-ebls", [1, 1, 1])
    table.learn(["a"], ROWS[:1])
    shown = table["a"]
    for learn in (shown.learn_one, shown.learn_many, shown.learn_calibrated, lambda p: shown.observe(p, 1)):
        with pytest.raises(rp.InputError, match=r"^Stream.\w+: `stream` must be able to learn.*`learn`"):
            learn(ROWS[0])
    np.testing.assert_array_equal(shown.prior, table.prior("a"))
    for ends, same in zip(shown.interval(0.8), table.interval("a", 0.8), strict=True):
        np.testing.assert_array_equal(ends, same)
    taken = table.pop("a")
    taken.learn_one(ROWS[1])
    table["a"] = taken
    assert table["a"].n == 2


@pytest.mark.parametrize("method", ["online-fmapls", "online-ebls", "fth"])
def test_top_k_rows_are_corrected_under_the_prior_of_their_key(method: str) -> None:
    source = rp.summarize(ROWS, ROWS.argmax(axis=1))
    table = rp.StreamTable(method, source, share=False)
    table.learn(["a", "b"] * 50, ROWS)
    index = np.argsort(-ROWS, axis=1)[:, :2]
    value = np.take_along_axis(ROWS, index, axis=1)
    keys = ["a", "new", "b"] * 10
    corrected = table.correct(keys, (index[:30], value[:30]))
    for row, key in enumerate(keys):
        stream = table[key] if key in table else rp.Stream(method, source)
        np.testing.assert_allclose(corrected[row], stream.correct_many((index[[row]], value[[row]]))[0], rtol=1e-12)


def test_a_table_goes_to_a_file_and_back(tmp_path) -> None:
    table = rp.StreamTable("online-ebls", [1, 1, 1])
    table.learn(["a", 7], ROWS[:2])
    table.save(tmp_path / "table", key=b"secret")
    assert rp.load(tmp_path / "table", b"secret").to_bytes() == table.to_bytes()
    with pytest.raises(rp.InputError, match="written with a key"):
        rp.load(tmp_path / "table")


K = 6
SOURCE = np.array([0.3, 0.25, 0.2, 0.1, 0.1, 0.05])
SHIFTED = np.array([0.05, 0.05, 0.1, 0.1, 0.2, 0.5])


def outputs(rng, prior, n):
    """Return rows (n, K) of a classifier that knows Gaussian classes exactly, under SOURCE."""
    means = np.random.default_rng(5).normal(size=(K, 4)) * 1.3
    return gaussian_outputs(rng, rng.choice(K, n, p=prior), means, SOURCE)


def many_keys(rng, keys=12, rows=60):
    """Return shuffled keys and rows of keys that all have about the shifted mix."""
    names = rng.permutation(np.repeat(np.arange(keys), rows))
    drawn = {key: outputs(rng, rng.dirichlet(30 * SHIFTED), rows) for key in range(keys)}
    observed = np.zeros(keys, int)
    out = np.empty((len(names), K))
    for i, key in enumerate(names):
        out[i], observed[key] = drawn[key][observed[key]], observed[key] + 1
    return [f"shop {key}" for key in names], out


def test_a_new_key_starts_from_what_the_others_have_in_common() -> None:
    rng = np.random.default_rng(1)
    keys, rows = many_keys(rng)
    apart, table = (rp.StreamTable("online-ebls", SOURCE, share=share) for share in (False, None))
    assert (apart.share, table.share) == (False, True)
    np.testing.assert_allclose(table.common, SOURCE, atol=0.01)
    for one in (apart, table):
        one.learn(keys, rows)
    assert rp.metrics.kl(SHIFTED, table.common) < 0.1 * rp.metrics.kl(SHIFTED, apart.common)
    assert "in common" in repr(table)
    assert "in common" not in repr(apart)
    new = outputs(rng, SHIFTED, 30)
    for one in (apart, table):
        one.learn(["new"] * 30, new)
    assert rp.metrics.kl(SHIFTED, table.prior("new")) < 0.5 * rp.metrics.kl(SHIFTED, apart.prior("new"))
    lower, upper = table.interval("new")
    assert ((lower <= SHIFTED) & (upper >= SHIFTED)).mean() > 0.8


@pytest.mark.parametrize("options", [{}, {"robust": 0.01}, {"drift": False}])
def test_what_keys_have_in_common_does_not_depend_on_the_cut_into_blocks(options) -> None:
    rng = np.random.default_rng(2)
    keys, rows = many_keys(rng, keys=25, rows=120 if not options else 15)  # beyond the rows of a key that count
    whole, cut = (rp.StreamTable("online-ebls", SOURCE, **options) for _ in range(2))
    whole.learn(keys, rows)
    at = 0
    while at < len(rows):
        step = int(rng.integers(1, 200))
        cut.learn(keys[at : at + step], rows[at : at + step])
        if at % 3 == 0:
            cut = rp.StreamTable.from_bytes(cut.to_bytes())
        at += step
    assert cut.to_bytes() == whole.to_bytes()
    for table in (whole, cut):
        table.learn(["new"], rows[:1])
    np.testing.assert_array_equal(whole.prior("new"), cut.prior("new"))


def two_kinds(rng, n=12):
    """Return two sharp mixes, and the keys and rows of so many keys around each, in any order."""
    mixes = np.array([[0.6, 0.3, 0.04, 0.02, 0.02, 0.02], [0.02, 0.02, 0.02, 0.04, 0.3, 0.6]])
    names = rng.permutation(np.repeat(np.arange(2 * n), 40))
    rows = np.concatenate([outputs(rng, mixes[key % 2], 1) for key in names])
    return mixes, names, rows


def test_keys_of_two_kinds_do_not_mislead_new_ones() -> None:
    rng = np.random.default_rng(7)
    mixes, keys, rows = two_kinds(rng)
    table, apart = (rp.StreamTable("online-ebls", SOURCE, share=share) for share in (True, False))
    for one in (table, apart):
        one.learn(keys, rows)
    for kind, mix in enumerate(mixes):
        new = outputs(rng, mix, 10)
        for one in (table, apart):
            one.learn([f"new {kind}"] * 10, new)
        shared, alone = (rp.metrics.kl(mix, one.prior(f"new {kind}")) for one in (table, apart))
        assert shared < 0.8 * alone
        assert shared < 0.6 * rp.metrics.kl(mix, table.common)


def test_keys_that_scatter_are_told_from_keys_that_are_alike() -> None:
    results = {}
    for strength in (2.0, 60.0):
        rng = np.random.default_rng(8)
        table = rp.StreamTable("online-ebls", SOURCE)
        keys = np.repeat(np.arange(30), 50)
        table.learn(keys, np.concatenate([outputs(rng, rng.dirichlet(strength * SHIFTED), 50) for _ in range(30)]))
        part = table.method.parts(table._fresh)
        results[strength] = float(np.exp(part["weights"] @ np.log(part["precision"].mean(axis=1))))
    for strength, precision in results.items():
        assert strength / 4 < precision < 4 * strength


def test_keys_that_come_one_after_another_are_no_drift() -> None:
    rng = np.random.default_rng(9)
    mixes, keys, rows = two_kinds(rng, n=30)
    orderly = np.argsort(keys % 2, kind="stable")  # all of one kind, then all of the other
    table = rp.StreamTable("online-ebls", SOURCE)
    table.learn(keys[orderly], rows[orderly])
    assert np.abs(table.common - mixes.mean(axis=0)).sum() < 0.3


def test_more_keys_than_are_compared_still_do_not_depend_on_the_cut_into_blocks() -> None:
    rng = np.random.default_rng(10)
    keys = np.concatenate([rng.integers(0, 100, 6000), rng.integers(100, 300, 6000)])
    rows = outputs(rng, SHIFTED, len(keys))
    whole, cut = (rp.StreamTable("online-ebls", SOURCE) for _ in range(2))
    whole.learn(keys, rows)
    for at in range(0, len(rows), 777):
        cut.learn(keys[at : at + 777], rows[at : at + 777])
        cut = rp.StreamTable.from_bytes(cut.to_bytes())
    assert cut.to_bytes() == whole.to_bytes()
    assert len(whole._shared_start.slots) == whole._shared_start.KEYS
    assert (whole._shared_start.slots >= 100).any()  # later keys take the places of earlier ones


def test_a_key_that_leaves_is_compared_no_more() -> None:
    rng = np.random.default_rng(11)
    table = rp.StreamTable("online-ebls", SOURCE, max_streams=2, on_evict=lambda key, stream: None)
    for i in range(40):
        table.learn([i // 2] * 5, outputs(rng, SHIFTED, 5))
    assert (table._shared_start.slots >= 0).sum() == 2
    np.testing.assert_allclose(table._shared_start.sums[0].sum(axis=1), 10)
    table.pop(19)
    assert (table._shared_start.slots >= 0).sum() == 1
    again = rp.StreamTable.from_bytes(table.to_bytes())
    for one in (table, again):
        one.learn([18] * 20, outputs(np.random.default_rng(0), SHIFTED, 20))
    assert again.to_bytes() == table.to_bytes()


def test_one_key_with_nearly_all_rows_does_not_speak_for_all() -> None:
    rng = np.random.default_rng(3)
    few, rows = many_keys(rng, keys=20, rows=40)
    table = rp.StreamTable("online-ebls", SOURCE)
    table.learn(["large"] * 20_000, outputs(rng, np.array([0.9, 0.02, 0.02, 0.02, 0.02, 0.02]), 20_000))
    table.learn(few, rows)
    assert table.common[0] < 0.25


def test_keys_that_have_not_shifted_leave_new_ones_alone() -> None:
    rng = np.random.default_rng(4)
    table = rp.StreamTable("online-ebls", SOURCE)
    table.learn(rng.integers(0, 20, 3000), outputs(rng, SOURCE, 3000))
    np.testing.assert_allclose(table.common, SOURCE, atol=0.01)
    table.learn(["new"] * 30, outputs(rng, SOURCE, 30))
    np.testing.assert_allclose(table.prior("new"), SOURCE, atol=0.03)


def test_no_key_takes_more_labels_than_rows() -> None:
    rows = outputs(np.random.default_rng(5), SHIFTED, 40)
    left: dict[Any, rp.Stream] = {}
    table = rp.StreamTable("online-ebls", SOURCE, max_streams=2, on_evict=left.__setitem__)
    table.learn(["a"] * 40, rows)
    before = table.to_bytes()
    with pytest.raises(rp.InputError, match=r"^StreamTable.observe: `y` must .* got 1 label of 0 samples of 'b'"):
        table.observe("b", rows[0], 5)  # a misspelt key must not get a stream
    assert table.to_bytes() == before
    table.learn(["b"], rows[:1])
    table.observe("b", rows[0], 5)

    def told_enough(some: rp.StreamTable) -> None:
        with pytest.raises(rp.InputError, match="got 2 labels of 1 sample of 'b'"):
            some.observe("b", rows[0], 5)

    told_enough(table)
    told_enough(rp.StreamTable.from_bytes(table.to_bytes()))
    with pytest.raises(rp.InputError, match="got 2 labels of 1 sample"):
        rp.Stream.from_bytes(table.pop("b").to_bytes()).observe(rows[0], 5)
    table.learn(["b"], rows[:1])  # another stream, in the row of the table that the old one had
    table.observe("b", rows[0], 5)
    table.learn(["a", "c"], rows[:2])
    table["b"] = left["b"]
    told_enough(table)


def test_only_methods_that_can_share_are_asked_to() -> None:
    assert not rp.StreamTable("online-fmapls", SOURCE).share
    with pytest.raises(rp.InputError, match="left out or False for online-fmapls"):
        rp.StreamTable("online-fmapls", SOURCE, share=True)
    with pytest.raises(rp.InputError, match="True or False"):
        rp.StreamTable("online-ebls", SOURCE, share="yes")


def test_forged_common_numbers_are_refused() -> None:
    from reprior.state import decode, encode

    table = rp.StreamTable("online-ebls", SOURCE)
    table.learn(*many_keys(np.random.default_rng(6)))
    good = decode(table.to_bytes(), "stream-table", "test")
    for name, value in (
        ("together", -good["together"]), ("together_start", good["together_start"] * 2),
        ("together_n", np.array([1, 2])), ("together_n", np.array([-1, 0])),
        ("together", good["together"][:-1]), ("together_start", None),
        ("together_sums", -good["together_sums"]), ("together_sums", good["together_sums"][:, :-1]),
        ("together_sums", good["together_sums"] * np.nan), ("together_sums", good["together_sums"] * 1e9),
        ("together_sums", good["together_sums"] * 0), ("together_sums", good["together_sums"][::-1]),
        ("together_keys", np.zeros(12, int)), ("together_keys", np.full(12, 99)), ("together_keys", [0] * 12),
    ):  # fmt: skip
        with pytest.raises(rp.InputError, match=r"StreamTable.from_bytes"):
            rp.StreamTable.from_bytes(encode("stream-table", {**good, name: value}))


def test_bytes_from_before_are_a_table_that_does_not_share() -> None:
    from reprior.state import decode, encode

    table = rp.StreamTable("online-ebls", SOURCE)
    table.learn(["a", "b"], outputs(np.random.default_rng(0), SOURCE, 2))
    before = decode(table.to_bytes(), "stream-table", "test")
    for name in [name for name in before if name.startswith("together")]:
        del before[name]
    again = rp.StreamTable.from_bytes(encode("stream-table", before))
    assert not again.share
    assert again["a"].n == 1


def test_room_is_made_only_while_no_other_thread_uses_the_table() -> None:
    table = rp.StreamTable("online-fmapls", [1, 1])
    with table._lock:
        other = threading.Thread(target=table.check_room, args=(["a"], 1, "watch"))
        other.start()
        other.join(0.2)
        assert other.is_alive()
    other.join(10)
    assert not other.is_alive()
