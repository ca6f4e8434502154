"""Make everything that is shown from the stored results: tables, claims, the page of findings, figures.

    python make.py                             # seconds
    python make.py --rerun EBLS default        # run the methods with these in their name again first, then the same
    python make.py --rerun EBLS --trials 10 --of cifar tiny    # with fewer trials, in some experiments

--rerun runs them in all experiments with their full numbers of trials, and the curves and intervals that show them; the
other rows stay. About an hour and a half of one core for `EBLS default`; it goes on where it stopped. --trials is how
many trials an experiment gets at most; the page tells which rows have fewer than others.
"""

from __future__ import annotations

import argparse

import claims
import curves
import expected
import figures
import findings
import record
import run
from tables import write_tables

SHOWN = ("online-cifar", "online-imagenet", "intervals")  # what else shows them


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rerun", nargs="+", metavar="TEXT", help="run the methods with one of these in their name again"
    )
    parser.add_argument("--trials", type=int, help="so many at most")
    parser.add_argument("--of", nargs="+", choices=[*run.EXPERIMENTS, *SHOWN], default=[*run.EXPERIMENTS, *SHOWN])
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    if args.rerun:
        # whole names: "EBLS" is one itself and would stand for no other
        wanted = tuple(m for m in run.CONTENDERS if any(text in m for text in args.rerun))
        for name in args.of:
            if name in run.EXPERIMENTS:
                full = run.EXPERIMENTS[name].trials
                run.run(name, trials=min(full, args.trials or full), wanted=wanted, jobs=args.jobs, store=True)
            elif name in curves.ONLINE:
                for line in (s for s in curves.STREAMS if any(text in s for text in args.rerun)):  # the others stay
                    stored = record.read(name)
                    full = record.line_made(stored, line)["trials"]
                    trials = min(full, args.trials or full)
                    fresh = curves.ONLINE[name](trials, [line])
                    record.write(record.RESULTS / f"{name}.json", curves.some_lines(stored, [line], trials, fresh))
            else:
                full = record.read(name)["trials"]
                trials = min(full, args.trials or full)
                measure, _ = curves.CURVES[name]
                record.store(record.RESULTS / f"{name}.json", {"trials": trials, **measure(trials)})
        expected.main(wanted)
    for name in run.EXPERIMENTS:
        path = record.RESULTS / f"{name}.json"
        if path.exists():
            write_tables(path)
    claims.main()
    findings.main()
    figures.main([])


if __name__ == "__main__":
    main()
