"""The constants of the default estimator, in one frozen value that a caller can replace."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Constants of the default estimator. `benchmarks/results/model_constants.md` has what other values cost.

    Parameters
    ----------
    no_shift : float
        Prior probability that the class prior has not shifted.
    even_shift : float
        Largest prior probability that a shift, if there is one, leads towards equal shares of all classes. Otherwise
        it leads away from the source in any direction.
    even_samples : float
        Labels that the samples must be worth (`effective_labels`) for that probability to be half of `even_shift`.
        Samples that tell little cannot show equal shares, and a bet on them would change tiny batches.
    sizes : tuple of float, increasing
        Shapes of the gamma prior of a class weight, which are averaged over; a larger shape allows smaller shifts only.
        Shape 100 keeps weights within about 10 % of their mean, shape 1 within a factor of about 3. Intervals assume
        the first.
    odd_size : float
        The shape for odd classes, which are absent or dominant. They are looked for if `odd_share` of the classes is
        more than one class.
    odd_share : float
        Expected share of odd classes, which also counts as the prior probability that there are any.
    pseudo_count : float
        Held-out samples added to each class, so that no class is impossible.
    counts_worth : float
        Effective held-out samples per class if there are training counts and no held-out samples.
    max_samples : int
        Target samples used to find the weights. All samples count in the shares.
    min_probability : float
        Posterior probability below which a kind of shift is dropped. Label shift has at least this probability before
        labels of target samples count, so that they can restore the correction.
    label_shift_odds : float
        Prior odds that a change is label shift, against anything else.
    drift_scale : float
        How far moments of the probabilities move within classes if something else has changed, in standard deviations.
    samples_per_direction : float
        Held-out samples per class that each direction of the moments needs.
    min_move : float
        Total change of the mean prediction, the sum over classes, below which the amplification takes it to be this
        large. Otherwise a weak classifier would amplify noise.
    stands_out : float
        Standard deviations from which a group is unlike the others. By chance no group lies that far out.
    no_bias : float
        Prior probability that labels of target samples show no class bias.
    bias_spreads : tuple of float
        Standard deviations that class biases may have, increasing, in log probability. Intervals assume the last.

    Examples
    --------
    >>> Settings(no_shift=0.9).no_shift
    0.9
    """

    no_shift: float = 0.6
    even_shift: float = 0.4
    even_samples: float = 20.0
    sizes: tuple[float, ...] = (1.0, 4.0, 16.0, 64.0)
    odd_size: float = 0.03
    odd_share: float = 0.1
    pseudo_count: float = 0.3
    counts_worth: float = 40.0
    max_samples: int = 20_000
    min_probability: float = 1e-3
    label_shift_odds: float = 10.0
    drift_scale: float = 0.2
    samples_per_direction: float = 2.0
    min_move: float = 0.03
    stands_out: float = 5.0
    no_bias: float = 0.9
    bias_spreads: tuple[float, ...] = (0.3, 1.0)


DEFAULT = Settings()
