"""`reprior correct`: the same files with corrected predictions, each written whole or not at all."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from reprior import InputError
from reprior._check import check_level, counted, fail
from reprior._types import Matrix, Vector
from reprior.cli._inputs import Inputs, anyway_option, by_option, input_options, method_options, read_inputs
from reprior.cli._shell import DONE, NOT_CONVERGED, Answer, alone, keep_apart, print_answer, progress
from reprior.estimates.sets import Scores, scores, scores_of
from reprior.estimates.show import first_lines, stopped
from reprior.io.files import SUFFIXES, SUFFIXES_OF
from reprior.io.sources import read_prior
from reprior.io.table import Choice, Correct, Corrected
from reprior.pipelines.watch import Watch
from reprior.rows.calibrated import corrected_rows
from reprior.state import decode, encode, hidden, is_special, naming, whole_file, write_atomically

NEXT_STEP = "Calibration is applied in full. Label random samples and pass them as `--labels` to decide."
UNWRITTEN = (".xlsx", ".xls", ".ods", ".tsv", ".h5", ".hdf5", ".pkl", ".gz", ".zip", ".zst", ".msgpack", ".db")


@click.command("correct")
@input_options
@method_options
@by_option
@click.option("-o", "--output", required=True, type=click.Path(allow_dash=True, path_type=Path),
              help="Output file; a folder if TARGET is a folder; - for standard output.")  # fmt: skip
@click.option("--prior", type=click.Path(exists=True, path_type=Path),
              help="File with a class prior (from `estimate --json`); use it instead of estimating.")  # fmt: skip
@click.option("--watch", type=click.Path(path_type=Path),
              help="File that remembers over runs whether changes were label shift; made if missing.")  # fmt: skip
@anyway_option
@click.option("--sets", type=float, metavar="LEVEL",
              help="Add the column `set`: prediction sets with this coverage, for example 0.9.")  # fmt: skip
@click.option("--sets-by-class", is_flag=True, help="Guarantee the coverage for each class; sets are larger.")
@print_answer
def command(
    output: Path, prior: Path | None, watch: Path | None, anyway: bool, sets: float | None, sets_by_class: bool,
    **files: Any,
) -> Answer | int:  # fmt: skip
    """Correct the predictions of TARGET for the estimated class prior; with --by, one prior per group.

    After a crash run the same command again: it continues, and the result has the same bytes.

    \b
    Example:  reprior correct scores.parquet --source model.reprior -o corrected.parquet
    """
    if prior is not None and files["by"]:
        raise click.UsageError("Pass either --prior or --by: a prior from a file is the same for all groups")
    if watch is not None and (prior is not None or files["by"]):
        raise click.UsageError("Pass --watch without --prior and --by: it judges one estimate of all samples")
    keep_apart("correct", output, files["target"], files["source"], files["counts"], prior, watch, standard=True)
    special = str(output) == "-" or (is_special(output) and not files["target"].is_dir())
    with alone("correct", watch, "--watch") if watch is not None else nullcontext():
        job, wanted = read_inputs("correct", **files), Wanted(prior, watch, anyway, sets, sets_by_class)
        promised, written = output.suffix.lower(), SUFFIXES_OF[job.table.parts[0].kind]
        if promised in (*SUFFIXES, *UNWRITTEN) and promised not in written and not files["target"].is_dir():
            fail("correct", "--output", f"end in {' or '.join(written)}, the format of the target", output)
        wanted = wanted._replace(sets=check_sets(job, wanted.sets, wanted.by_class))
        with nullcontext() if special else alone("correct", output, "--output"):
            answer = corrected(job, output, wanted, files, special)
    return (DONE if answer.ok else NOT_CONVERGED) if special else answer  # a pipe gets the rows alone


class Wanted(NamedTuple):
    """What to correct by: a prior from a file, or the estimate, after what `watch` remembers; and which sets to add."""

    prior: Path | None
    watch: Path | None
    anyway: bool
    sets: float | None
    by_class: bool


def check_sets(inputs: Inputs, level: float | None, by_class: bool) -> float | None:
    """Return the level of the sets, if they are wanted and can be had."""
    if level is None:
        if by_class:
            raise click.UsageError("--sets-by-class needs --sets LEVEL")
        return None
    if inputs.source.heldout is None:
        fail("correct", "--sets", "be measured on held-out samples with labels", "class counts alone",
             remedy="Give held-out predictions as --source")  # fmt: skip
    for part in inputs.table.parts:
        if part.kind == "npy":
            fail("correct", "--sets", "have a column to be written to", f"{part.name}, an array",
                 remedy="Save it with np.savez(file, proba=…)")  # fmt: skip
    return check_level(level, "correct")


def corrected(inputs: Inputs, output: Path, wanted: Wanted, files: dict[str, Any], special: bool) -> Answer:
    """Write the corrected files, or the rest of them after a crash, and return what was done.

    A `special` output, as a pipe, takes one part at once, and has no journal to continue from.
    """
    mark, target = fingerprint(inputs, wanted, files), files["target"]
    journal = {} if special else read_journal(output, mark)
    if not journal:
        journal = {**find_weights(inputs, wanted)._asdict(), "mark": mark, "parts": 0}
        if not special:
            write_journal(output, journal)
    weighting = Weighting(**{name: journal[name] for name in Weighting._fields})
    parts, kept = inputs.table.parts, journal["parts"]
    for number, part in enumerate(parts[kept:], kept):
        path = output / Path(part.name).relative_to(target) if target.is_dir() else output
        with nullcontext(sys.stdout.buffer) if str(output) == "-" else whole_file(path) as file:
            part.rewrite(file, correction(inputs, weighting, number), inputs.classes if wanted.sets else None)
        journal["parts"] += 1
        if journal["parts"] < len(parts):  # after the last one nothing is left to do
            write_journal(output, journal)
    if wanted.watch is not None:  # the journal has the memory too, so that a batch counts once after a crash
        write_atomically(wanted.watch, bytes(weighting.watch))
    if not special:
        hidden(output, "journal").unlink(missing_ok=True)
    value = {"output": str(output), "files": len(parts), "written": len(parts) - kept, "ok": weighting.ok,
             "verdict": weighting.verdict, "acts": weighting.acts}  # fmt: skip
    by = "" if wanted.prior else f" by {inputs.method_text}"
    head = f"{output}: {counted(len(parts), 'file')} corrected{by}"
    head += f", {kept} of them by an earlier run" if kept else ""
    lines = first_lines(head, weighting.verdict, weighting.stopped) + [NEXT_STEP] * bool(weighting.stopped)
    return Answer(value | inputs.how_made, "\n".join(lines) + inputs.note(weighting.verdict), weighting.ok)


def correction(inputs: Inputs, weighting: Weighting, number: int) -> Correct:
    """Return what calibrates and corrects the rows (n, K) of part `number`, block by block in their order."""
    calibrator, codes, at = inputs.pipeline.calibrator, None, 0
    if inputs.keys is not None:
        slots = {key: g for g, key in enumerate(weighting.groups)}
        codes = np.array([slots[key] for key in inputs.keys[number]], np.int64)

    def fixed(rows: Matrix) -> Corrected:
        nonlocal at
        first, at = at, at + len(rows)
        weights, least = weighting.weights, weighting.least
        if codes is not None:
            own = codes[first:at]
            if len(own) < len(rows):
                fail("correct", inputs.table.parts[number].name, "not grow while it is read", "more rows than before",
                     remedy="The file was changed while it was read. Run the command again")  # fmt: skip
            weights, least = weights[own], None if least is None else least[own]
        out = corrected_rows(rows, calibrator, weights, first)
        return Corrected(out, None if least is None else out >= least)

    return fixed


class Weighting(NamedTuple):
    """What the journal keeps of a correction: its class weights, and the sentences about them."""

    weights: Any  # (K,), or (G, K) of `groups`
    ok: bool = True
    verdict: Sequence[str] = ()
    acts: dict[str, Any] | None = None
    stopped: str = ""
    least: Any = None  # cutoffs of sets, if they are wanted
    watch: bytes = b""  # the memory over runs
    groups: Sequence[Any] = ()


def find_weights(inputs: Inputs, wanted: Wanted) -> Weighting:
    """Return the class weights to correct by: those of a prior from a file, or of the estimate."""

    def cutoffs(of: Callable[..., Scores], *args: Any) -> Any:
        return of(*args).cutoffs(wanted.sets, by_class=wanted.by_class) if wanted.sets else None

    if wanted.prior is not None:
        prior = read_prior(wanted.prior, inputs.source.classes, inputs.table.n_classes, Choice(caller="correct"))
        stored = stored_weights(wanted.prior, inputs)
        weights = prior / inputs.source.prior if stored is None else stored
        least = cutoffs(scores_of, inputs.source, inputs.pipeline.calibrator, prior, None, weights)
        return Weighting(weights, least=least)
    on_reject = "ignore" if wanted.anyway else "scale"
    watch = None if wanted.watch is None else read_watch(wanted.watch, inputs, on_reject)
    with progress(inputs.rows):
        labels, label_weights, _ = inputs.labels
        estimate = (watch.estimate(inputs.rows, labels, label_weights=label_weights) if watch
                    else inputs.estimate(on_reject=on_reject))  # fmt: skip
    ok, acts = estimate.status.ok, estimate.acts
    weighting = Weighting(estimate.weights, ok, inputs.verdict(estimate), acts and acts._asdict(), stopped(acts),
                          watch=watch.to_bytes() if watch else b"")  # fmt: skip
    if inputs.keys is None:
        return weighting._replace(least=cutoffs(scores, estimate))
    with progress(inputs.rows):
        groups = inputs.groups(on_reject=on_reject)
    least = np.stack([cutoffs(scores, groups[key]) for key in groups]) if wanted.sets else None
    ok = ok and bool(groups.converged.all())
    return weighting._replace(weights=groups.weights, groups=list(groups.keys), ok=ok, least=least)


def read_watch(path: Path, inputs: Inputs, on_reject: str) -> Watch:
    """Return what earlier runs remember of this deployment, or a new memory if there is none."""
    now = inputs.pipeline
    if not path.exists():
        return Watch(now, on_reject=on_reject)
    then = Watch.load(path)
    if then.pipeline.to_bytes() != now.to_bytes():
        fail("correct", "--watch", "belong to this source and method", f"{path}, which belongs to another",
             remedy="After retraining name a new file")  # fmt: skip
    return Watch(now, on_reject=on_reject, evidence=then.evidence, n_batches=then.n_batches)


def stored_weights(prior: Path, inputs: Inputs) -> Vector | None:
    """Return the class weights (K,) that `reprior estimate --json` stored, if any; those of another source, whose
    probabilities imply another prior, are refused."""
    made = json.loads(prior.read_bytes()) if prior.suffix == ".json" else None
    if not isinstance(made, dict) or "source_prior" not in made:
        return None
    then, now = made.get("calibration"), inputs.how_made["calibration"]
    shares, weights = made["source_prior"], made.get("weights")
    if inputs.source.classes and made.get("classes") and {*made["classes"]} == {*inputs.source.classes}:
        places = [made["classes"].index(name) for name in inputs.source.classes]
        shares, weights = ([x[j] for j in places] if x else None for x in (shares, weights))
    if then != now or max(abs(a - b) for a, b in zip(shares, inputs.source.prior, strict=True)) > 1e-6:
        fail("correct", "--prior", f"come from the same source (calibration {now})", f"another ({then})",
             remedy="Give --source, --counts and --calibrate as for `reprior estimate`")  # fmt: skip
    return np.asarray(weights) if weights else None


def read_journal(output: Path, mark: str) -> dict[str, Any]:
    """Return how far an earlier run of this very job got; nothing if there was none."""
    try:
        journal = decode(hidden(output, "journal").read_bytes(), "correct-journal", "correct")
    except (OSError, InputError):
        return {}
    return journal if journal.get("mark") == mark else {}


def write_journal(output: Path, journal: dict[str, Any]) -> None:
    """Note, whole or not at all, the weights in use and how far the job got."""
    with naming(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(hidden(output, "journal"), encode("correct-journal", journal))


def fingerprint(inputs: Inputs, wanted: Wanted, files: dict[str, Any]) -> str:
    """Return what tells whether a journal belongs to this very job: same files, unchanged, same settings."""
    settings = [*files.values(), *wanted]
    names = [part.name for part in inputs.table.parts] + [str(x) for x in settings if isinstance(x, (str, Path))]
    stats = [os.stat(name) for name in names if os.path.exists(name)]
    about = [names, [(stat.st_size, stat.st_mtime_ns) for stat in stats], settings]
    return blake2b(repr(about).encode(), digest_size=16).hexdigest()
