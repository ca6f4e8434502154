"""The page that is sent to a colleague: it says what tests and intervals say, at any size, and runs nothing foreign."""

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from worlds import make_problem, score_outputs, softmax

import reprior as rp
from reprior._types import Acts, Interval, Status
from reprior.assess.diagnose import Diagnosis
from reprior.estimates.show import cut, share, times
from reprior.report.collect import collect, ending, headline, shares_shown
from reprior.report.page import STYLE, before_after, cloud_chart, html_text, page, shift_chart

EXPONENT = re.compile(r"\de[+-]?\d+\s*%")


def draw(rng, n, prior, sure=2.2):
    y = rng.choice(len(prior), n, p=prior)
    return score_outputs(rng, y, len(prior), sure, scale=1), y


class Reader(HTMLParser):
    """Collects tags, what is read, and the headline of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.read, self.lead, self._in = [], [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("style", "script", "p"):
            self._in = tag + (dict(attrs).get("class") or "")
        if tag == "p" and self._in.startswith("plead"):
            self.lead.append((self._in[len("plead ") :], ""))

    def handle_endtag(self, tag):
        if tag in ("style", "script", "p"):
            self._in = ""

    def handle_data(self, data):
        data = data.replace("\u00a0", " ")
        if self._in not in ("style", "script"):
            self.read.append(data)
        if self._in.startswith("plead"):
            kind, before = self.lead.pop()
            self.lead.append((kind, before + data))

    @property
    def text(self):
        return "".join(self.read)


@pytest.fixture
def report(call, tmp_path):
    """Write files, run `report`, and return what it printed and the page."""

    def report(rows, heldout=None, *more, classes=None, counts=None, code=0):
        names = {} if classes is None else {"classes": classes}
        np.savez(tmp_path / "t.npz", proba=rows, **names)
        if heldout is not None:
            np.savez(tmp_path / "s.npz", proba=heldout[0], y=heldout[1], **names)
        else:
            np.save(tmp_path / "c.npy", counts)
        source = tmp_path / ("s.npz" if heldout is not None else "c.npy")
        got, out, err = call("report", tmp_path / "t.npz", "-s", source, "-o", tmp_path / "r.html", *more)
        assert (got, err) == (code, ""), err
        return out, (tmp_path / "r.html").read_text(encoding="utf-8")

    return report


def test_no_shift_names_no_mover(report):
    rng = np.random.default_rng(1)
    prior = np.array([0.5, 0.3, 0.2])
    out, text = report(draw(rng, 2000, prior)[0], draw(rng, 1000, prior), classes=["cat", "dog", "bird"])
    lead = "".join(message for _, message in Reader(text).lead)
    assert lead.startswith("No shift found (p")
    assert "The 95 % interval of every class includes its source share." in lead
    assert not re.search(r"cat|dog|bird|rose|fell|shifted", lead)
    assert "No shift found" in out.splitlines()[1]


def test_a_shift_names_the_classes_whose_intervals_exclude_the_source(report, ask, tmp_path):
    rng = np.random.default_rng(2)
    names = ["cat", "dog", "bird"]
    out, text = report(draw(rng, 2000, [0.2, 0.3, 0.5])[0], draw(rng, 1000, [0.5, 0.3, 0.2]), classes=names)
    lead = "".join(message for _, message in Reader(text).lead)
    value = ask("report", tmp_path / "t.npz", "-s", tmp_path / "s.npz")
    outside = [
        not lo <= s <= hi for lo, s, hi in zip(value["lower"], value["source_prior"], value["upper"], strict=True)
    ]
    assert lead.startswith("The predictions have shifted (p < 1e-12). Probability of label shift: ")
    assert outside[0]
    assert outside[2]
    assert [name in lead for name in names] == outside
    assert f"The 95 % intervals of {sum(outside)} of 3 classes exclude their source share" in out
    assert "sorted by how far the share moved" in text


def test_rejected_label_shift_is_the_first_line_and_a_warning(report):
    rng = np.random.default_rng(3)
    prior = np.array([0.5, 0.3, 0.2])
    rows = draw(rng, 2000, prior)[0]
    rows[:900] = softmax(0.2 * rng.normal(size=(900, 3)))
    out, text = report(rows, draw(rng, 1000, prior))
    lead = Reader(text).lead
    assert lead[0][0] == "warn"
    assert lead[0][1].startswith("0% of the correction is applied. The data differ by more than their class prior")
    assert "have shifted" not in "".join(message for _, message in lead)
    assert out.splitlines()[0] == lead[0][1]
    allows = "The intervals allow for label shift and for other changes. "
    assert text.count(f"{allows}The correction is not applied.") == 2  # chart and table
    assert "assumes label shift" not in text
    assert "The shares in this report are the mean prediction." in text
    assert "<td>ebls (this report)</td><td>—</td><td>—</td>" in text  # the log-likelihood belongs to another prior
    applied = report(draw(rng, 2000, prior)[0], draw(rng, 1000, prior))[1]
    assert allows not in applied
    assert "<td>ebls (this report)</td><td>—</td><td>—</td>" not in applied


def result(shift_p, label_shift):
    return Diagnosis(estimate=None, shift_p=shift_p, label_shift=label_shift, confused=(), effective_labels=1.0,
                     smallest_singular_value=None, effective_heldout=None, overconfidence=None, overconfidence_se=None,
                     accuracy=None, alpha=0.05)  # fmt: skip


@pytest.mark.parametrize(
    ("shift_p", "label_shift", "wide", "good", "says"),
    [
        (0.3, 0.9, True, [True, True], ["No shift found", "every class includes"]),
        (0.3, 0.9, False, [True, True], ["No shift found", "by chance"]),
        (1e-9, 0.9, True, [True, True], ["have shifted", "do not show which classes moved"]),
        (1e-9, 0.9, False, [True, True], ["have shifted", "of 2 of 2 classes exclude their source share: 0 (50.0 %"]),
        (1e-9, 0.1, False, [False, True, True],
         ["differ by more than their class prior", "assumes label shift", "exclude"]),
        (1e-9, None, False, [False, True], ["Held-out samples would show which", "exclude"]),
        (0.3, None, True, [True, True], ["No shift found", "every class includes"]),
    ],
)
def test_headline_agrees_with_tests_and_intervals(shift_p, label_shift, wide, good, says):
    estimate = replace(rp.ebls([1, 1], [[0.9, 0.1], [0.2, 0.8]]), prior=np.array([0.7, 0.3]))
    ends = ([0.2, 0.1], [0.9, 0.8]) if wide else ([0.6, 0.2], [0.8, 0.4])
    message = headline(estimate, Interval(*map(np.array, ends), level=0.95, note=""), result(shift_p, label_shift))
    assert [sentence.good for sentence in message] == good
    for sentence, part in zip(message, says, strict=True):
        assert part in sentence.text


def test_the_report_says_which_shares_it_shows():
    estimate = rp.ebls([1, 1], [[0.9, 0.1], [0.2, 0.8]])
    assert shares_shown(estimate) == "The rest of this report assumes label shift."
    estimate = replace(estimate, acts=Acts(0.2, "So.", -1.0))
    assert shares_shown(estimate) == "The shares in this report are the mean prediction."
    assert shares_shown(replace(estimate, n_labels=1)) == "The shares in this report are estimated with the labels."


def test_how_a_method_ended():
    assert ending(Status.STOPPED) == []
    assert ending(Status.CONVERGED)[0].good
    assert not ending(Status.NOT_CONVERGED)[0].good
    assert not ending(Status.UNSEEN_CLASSES)[0].good


@pytest.mark.parametrize(("method", "answer"), [("fmapls", "method"), ("ebls", "method, not converged")])
def test_a_normal_end_is_no_failure(report, method, answer, monkeypatch):
    rng, stopped = np.random.default_rng(4), "not" in answer
    if stopped:
        monkeypatch.setattr("reprior.model.likelihood.MAX_CYCLES", 1)
    text = report(draw(rng, 300, [0.1, 0.2, 0.7])[0], draw(rng, 200, [0.4, 0.3, 0.3]), "-m", method,
                  code=2 if stopped else 0)[1]  # fmt: skip
    assert f"<span>{answer}</span>" in text
    assert ("Not converged within" in text) == stopped
    assert '<p class="fine"></p>' not in text


@pytest.mark.parametrize(("k", "n"), [(2, 1), (2, 400), (100, 200)])
def test_any_size(report, k, n):
    rng = np.random.default_rng(5)
    prior = np.arange(1, k + 1.0) ** -3  # the rarest class of a hundred has a share of 1e-6
    rows = rng.dirichlet(np.full(k, 0.1), n) + 1e-12
    text = report(rows / rows.sum(axis=1, keepdims=True), counts=prior, classes=[f"kind {j}" for j in range(k)])[1]
    read = Reader(text)
    assert not EXPONENT.search(read.text)
    assert "nan" not in read.text.lower()
    assert text.count("<tr><td>kind ") == k
    assert "training" not in read.text.replace("training counts", "")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_shares_of_nothing_and_next_to_nothing(report):
    rows = np.array([[1 - 1e-12, 1e-12, 0.0]] * 50)
    for method in ("mlls", "ebls"):
        text = report(rows, None, "-m", method, counts=[0.5, 0.5, 1e-30], classes=["a", "b", "c"])[1]
        assert not EXPONENT.search(Reader(text).text)


def test_other_methods_that_rule_out_a_row(ask, files):
    answer = ask("report", files["npz"], "-s", files["heldout"])
    assert answer["agreement"][0]["method"] == "ebls (this report)"
    assert [row["method"] for row in answer["agreement"]].count("ebls") == 0
    for nothing in (None, -math.inf):
        answer["agreement"][1]["log_likelihood"] = nothing
        assert "−∞" in page(answer)


HOSTILE = '</title></svg><script>alert(1)</script><img src=x onerror="alert(2)">\'"&\x1b[2J'


def test_names_run_nothing(ask, files):
    answer = ask("report", files["npz"], "-s", files["heldout"])
    plain = Reader(page(answer))
    answer["classes"] = [f"{HOSTILE}{j}" for j in range(len(answer["classes"]))]
    answer["made"] = dict.fromkeys(answer["made"], HOSTILE)
    answer["note"] = answer["source_made"] = HOSTILE
    for message in (*answer["headline"], *answer["diagnosis"]):
        message["text"] += HOSTILE
    for row in answer["agreement"]:
        row["method"] = HOSTILE
    text = page(answer)
    read = Reader(text)
    allowed = {tag for tag, _ in plain.tags} | {"wbr"}
    assert {tag for tag, _ in read.tags} <= allowed
    assert [tag for tag, _ in read.tags].count("script") == 1
    assert not any(name.startswith("on") or name in ("src", "href") for _, attrs in read.tags for name in attrs)
    policy = next(attrs["content"] for tag, attrs in read.tags if "http-equiv" in attrs)
    assert re.fullmatch(r"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-[\w+/]{43}='", policy)
    drawn = cloud_chart([0.1] * 2 + [0.8], [0.2] * 2 + [0.6], [HOSTILE] * 3)
    drawn += shift_chart([HOSTILE], [0.5], [0.4], [0.3], [0.6])
    assert not {tag for tag, _ in Reader(drawn).tags} & {"script", "img"}


def luminance(colour):
    digits = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def test_both_palettes_are_readable():
    light, dark = (dict(re.findall(r"--(\w+):(#\w+)", block)) for block in re.findall(r":root\{([^}]*)\}", STYLE))
    assert dark.keys() == light.keys()
    assert not re.search(r"#[0-9a-f]{3,6}", re.sub(r":root\{[^}]*\}", "", STYLE))  # every colour is one of a palette
    for palette in (light, dark):
        page_colour = luminance(palette["page"])
        for name, least in {"ink": 10, "soft": 4.5, "red": 4.5, "blue": 4.5, "grey": 3}.items():
            a, b = sorted([luminance(palette[name]), page_colour])
            assert (b + 0.05) / (a + 0.05) >= least, name
    assert luminance(dark["page"]) < 0.05 < luminance(light["page"])


def test_shares_and_factors_as_text():
    shares = {1: "100.0 %", 0.123: "12.3 %", 0.00123: "0.12 %", 5e-5: "0.005 %", 3e-10: "< 0.001 %", 0: "0 %"}
    assert {x: share(x) for x in shares} == shares
    assert (share(None), share(math.nan)) == ("—", "—")
    predicted = {(0.5, 0.25): "× 0.50", (0.01, 0.5): "× 50.0", (1e-3, 0.5): "× 500", (1e-300, 0.5): "× > 9,999",
            (0.0, 0.1): "× > 9,999", (0.5, 1e-9): "× < 0.01", (0.5, 0.0): "× 0.00"}  # fmt: skip
    assert {pair: times(*pair) for pair in predicted} == predicted


def test_names_as_text():
    assert cut("a" * 40) == "a" * 40
    assert cut("start" + "x" * 100 + "end") == "start" + "x" * 15 + "…" + "x" * 16 + "end"
    assert cut("two\nlines\x1b[2J") == "two·lines·[2J"
    assert html_text("top_up-x at 78.1 %, < 3 (p = 1e-12)") == (
        'top_up-x at 78.1\u00a0%, &lt;\u00a03 <span class="one">(p = 1e-12)</span>'
    )
    assert html_text("a_rather_long-winded.name_1") == "a_<wbr>rather_<wbr>long-<wbr>winded.<wbr>name_<wbr>1"


@pytest.mark.parametrize("k", [2, 12, 1000])
def test_repr_is_aligned(k):
    rng = np.random.default_rng(6)
    names = [f"{'a rather long name of a class ' * (j % 3)}number {j}" for j in range(k)]
    source = rp.summarize(*draw(rng, 500, np.full(k, 1 / k)), classes=names, prior=np.arange(1, k + 1.0) ** -2)
    text = repr(rp.mlls(source, draw(rng, 50, np.full(k, 1 / k))[0]))
    assert len(text.splitlines()) <= 8
    lines = text[text.index("class  ") :].splitlines()
    rows = lines[: 1 + min(k, 3)]
    assert {len(line) for line in rows} == {len(rows[0])}
    assert all("×" in line for line in rows[1:])
    assert len(rows[0]) <= 110
    assert lines[len(rows) :] == ([f"… and {k - 3:,} classes with smaller changes"] if k > 3 else [])


def test_the_same_as_json(ask, files):
    answer = ask("report", files["npz"], "-s", files["heldout"])
    assert json.loads(json.dumps(answer)) == answer
    assert all(item["text"] and isinstance(item["ok"], bool) for item in answer["headline"])


def test_plot_says_what_was_found():
    pytest.importorskip("matplotlib").use("Agg")
    rng = np.random.default_rng(1)
    prior = np.array([0.5, 0.3, 0.2])
    pipe = rp.pipeline(*draw(rng, 1000, prior), classes=["a" * 60, "$x$", "b"])
    axes = pipe.estimate(draw(rng, 2000, prior)[0]).plot()
    assert axes.get_title(loc="left").startswith("No shift found")
    assert "sorted by how far the share moved" in axes.get_title(loc="left")
    assert {len(label.get_text()) for label in axes.get_yticklabels()} == {40, 5, 1}
    axes.figure.canvas.draw()  # names are no formulas


def test_the_first_lines_say_that_the_class_mix_has_shifted():
    problem = make_problem(seed=3)
    held, y = problem.source.heldout
    est = rp.pipeline(held, y).estimate(problem.proba)
    assert est.checks.label_shift > 0.8
    assert est.checks.shift_p < 0.05
    assert repr(est).splitlines()[1].startswith("The predictions have shifted (p")


def test_what_has_not_shifted_shows_no_change_against_training():
    rng = np.random.default_rng(5)
    held, y = draw(rng, 400, [0.5, 0.3, 0.2])
    est = rp.pipeline(held, y, counts=[560, 280, 160]).estimate(draw(rng, 2000, [0.5, 0.3, 0.2])[0])
    assert repr(est).splitlines()[1].startswith("No shift found (p")
    np.testing.assert_allclose(est.source.prior, [0.56, 0.28, 0.16], atol=1e-6)  # the shares that changes start from


def test_calibration_and_correction_are_told_apart(problem):
    held, y = problem.source.heldout
    est = rp.pipeline(held, y, calibration="vector").estimate(problem.proba, on_reject="ignore")
    raw, observed, fixed = (rows.argmax(axis=1) for rows in (
        problem.proba, est.calibrator(problem.proba), est.correct(problem.proba)))  # fmt: skip
    report = collect(est, rp.ArrayBlocks(problem.proba), level=0.95, made={"method": "ebls"})
    answer = report["predictions"]
    assert answer["changed_by_calibration"] == (raw != observed).sum() > 0
    assert answer["changed_by_correction"] == (observed != fixed).sum() > 0
    assert answer["changed"] == (raw != fixed).sum()
    text = before_after(report).replace("\u00a0", " ")
    assert f"Calibration changes the predicted class of {(raw != observed).sum():,} row" in text
    assert f"Together they change {(raw != fixed).sum():,} row" in text
    plain = replace(est, calibrator=None)
    text = before_after(collect(plain, rp.ArrayBlocks(problem.proba), level=0.95, made={"method": "ebls"}))
    assert "Correction changes the predicted class of " in text
    assert "Calibration changes" not in text


def test_nearly_all_is_not_all():
    assert [share(x) for x in (0.99949, 0.99951, 0.99996, 1.0)] == ["99.9 %", "> 99.9 %", "> 99.9 %", "100.0 %"]
