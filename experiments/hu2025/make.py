"""Make everything that is shown from the stored results: tables, claims, the page of findings, figures.

    python make.py                             # seconds
    python make.py --rerun EBLS default        # run the methods with these in their name again first, then the same

--rerun runs them in all experiments with their full numbers of trials, and the curves and intervals that show them; the
other rows stay. About an hour of one core for `EBLS default`; it goes on where it stopped.
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rerun", nargs="+", metavar="TEXT", help="run the methods with one of these in their name again"
    )
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    if args.rerun:
        # whole names: "EBLS" is one itself and would stand for no other
        wanted = tuple(m for m in run.CONTENDERS if any(text in m for text in args.rerun))
        for name in run.EXPERIMENTS:
            run.run(name, wanted=wanted, jobs=args.jobs)
        for name in ("online-cifar", "online-imagenet", "intervals"):
            measure, _ = curves.CURVES[name]
            trials = record.read(name)["trials"]
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
