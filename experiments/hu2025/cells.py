"""The paper's settings: which classifier, which shift, and the target rows of one Monte-Carlo trial."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from outputs import Outputs

import reprior as rp
from reprior.simulate import Sample

SEED = 2025
CIFAR_RATIOS = (0.2, 0.1, 0.05, 0.02)
SHUFFLED = (0.02, 0.025, 0.04, 0.05, 0.1)
DIRICHLET = (1.0, 1.5, 2.0, 2.5, 3.0)


@dataclass(frozen=True, slots=True)
class Cell:
    """One column of a table: a classifier's name, the kind of shift, and its strength."""

    model: str
    shift: str
    value: float

    @property
    def name(self) -> str:
        return f"{self.model}/{self.shift}-{self.value:g}"


def cells(models: list[str], shuffled: tuple[float, ...], dirichlet: tuple[float, ...]) -> list[Cell]:
    return [Cell(m, s, v) for m in models for s, values in (("shuffled", shuffled), ("dirichlet", dirichlet))
            for v in values]


CIFAR = cells([f"cifar100-lt-{r}" for r in CIFAR_RATIOS], SHUFFLED, DIRICHLET)
LONG = cells([f"{c}-long" for c in dict.fromkeys(c.model for c in CIFAR)], SHUFFLED, DIRICHLET)  # twice the epochs
TEXT = cells(["banking77", "clinc150"], SHUFFLED, DIRICHLET)
IMAGENET = cells(["imagenet-lt", "imagenet-lt-simulated"], SHUFFLED[:4], DIRICHLET[:4])
TINY = cells([f"tiny-imagenet-lt-{r}" for r in CIFAR_RATIOS], SHUFFLED, DIRICHLET)
# three test images a class, none drawn twice: a part of the classes absent, or each with none to three images
VAL = [Cell("imagenet-val5k", "absent", 0.0), Cell("imagenet-val5k", "uneven", 3.0),
       Cell("imagenet-val5k", "absent", 0.5), Cell("imagenet-val5k", "absent", 0.8)]
SHIFTS = ("shuffled", "dirichlet", "absent", "uneven")


def draw(cell: Cell, outputs: Outputs, trial: int, *, n_dirichlet: int = 3000, printed: bool = False) -> Sample:
    """Return the target rows of a trial; the same cell and trial give the same rows on any machine.

    A shuffled long tail takes all test rows of its largest class, as eq. 3 does with the test set's class size; a
    Dirichlet target has `n_dirichlet` rows. Classes that run out of test rows are filled up with replacement.
    "absent" takes all test rows of the other classes; "uneven" none to `value` of each class: there no row comes twice.
    `printed` draws as eq. 2 and 3 stand, with the exponent k/K and class sizes rounded down; else as public code does.
    """
    k = len(outputs.counts)
    kind = SHIFTS.index(cell.shift)
    rng = np.random.default_rng([SEED, kind, round(1000 * cell.value), trial])
    exponent = "k/K" if printed else "k/(K-1)"
    if cell.shift == "shuffled":
        prior = rp.simulate.shuffled_long_tail(k, cell.value, rng=rng, exponent=exponent)
        largest = int(np.bincount(outputs.y_test, minlength=k).min())
        n = int(rp.simulate.long_tail_counts(k, cell.value, n_max=largest, exponent=exponent).sum())
    elif cell.shift == "dirichlet":
        prior, n = rp.simulate.dirichlet(k, cell.value, rng=rng), n_dirichlet
    else:
        size = np.bincount(outputs.y_test, minlength=k)
        if cell.shift == "absent":
            size = size * (rp.simulate.knock_out(k, cell.value, rng=rng) > 0)
        else:
            size = np.minimum(size, rng.integers(0, int(cell.value) + 1, k))
        prior, n = size / size.sum(), int(size.sum())
    if printed:  # sizes are rounded down; `resample` would round by largest remainders
        size = np.floor(prior * n + 1e-9)
        prior, n = size / size.sum(), int(size.sum())
    return rp.simulate.resample(outputs.test, outputs.y_test, prior, n=n, rng=rng)
