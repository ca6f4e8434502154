"""Batch methods against implementations that share no line with ours; each test says against what."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.optimize import lsq_linear, minimize
from scipy.special import digamma, gammaln, logsumexp
from worlds import make_problem

import reprior as rp
from reprior import datasets, simulate
from reprior.batch.moments import regularised_shift

Case = tuple[rp.Source, np.ndarray]


def real_case(name: str, n: int) -> Case:
    """Outputs of a shipped classifier under a shuffled long tail, with the training counts as source prior."""
    shipped = datasets.load(name)
    source = rp.summarize(shipped.heldout_proba, shipped.heldout_y, prior=shipped.counts)
    prior = simulate.shuffled_long_tail(shipped.counts.size, 0.05, rng=3)
    return source, simulate.resample(shipped.pool_proba, shipped.pool_y, prior, n=n, rng=4).proba


def exact_case(k: int, n: int, alpha: float = 1.0) -> Case:
    problem = make_problem(k, n, separation=2.0, seed=k, alpha=alpha)
    return problem.source, problem.proba


CASES = {
    "K=5": lambda: exact_case(5, 400),
    "K=12": lambda: exact_case(12, 2000),
    "banking77": lambda: real_case("banking77", 1500),
}


@pytest.fixture(scope="module", params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()


def responsibilities(proba: np.ndarray, source: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """The textbook E-step, which materialises r_ij (eq. 8)."""
    joint = proba * (prior / source)
    return joint / joint.sum(axis=1, keepdims=True)


# -- mlls against QuaPy's EMQ -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def emq() -> type:
    pytest.importorskip("quapy")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its dependencies' own
        from quapy.method.aggregative import EMQ
    return EMQ


def test_mlls_optimum_is_where_quapy_emq_converges(case: Case, emq: type, monkeypatch: pytest.MonkeyPatch) -> None:
    source, proba = case
    monkeypatch.setattr(emq, "MAX_ITER", 60_000)
    # their stop rule is the mean change of a share in a step, which is far smaller than what is left to go
    theirs, _ = emq.EM(source.prior.copy(), proba, epsilon=1e-13)
    ours = rp.mlls(source, proba, tol=1e-13)
    assert ours.status is rp.Status.OPTIMUM
    np.testing.assert_allclose(ours.prior, theirs, rtol=0, atol=1e-7)


def test_mlls_steps_are_those_of_quapy_emq(case: Case, emq: type, monkeypatch: pytest.MonkeyPatch) -> None:
    source, proba = case
    monkeypatch.setattr(emq, "MAX_ITER", 37)
    with pytest.warns(UserWarning, match="maximum number of iterations"):
        theirs, _ = emq.EM(source.prior.copy(), proba, epsilon=0.0)
    np.testing.assert_allclose(rp.mlls(source, proba, n_iter=37).prior, theirs, rtol=0, atol=1e-13)


# -- mapls against the published nested formula [ye2024] --------------------------------------------------------------


def published_mapls(source: np.ndarray, proba: np.ndarray, offset: float) -> np.ndarray:
    """MAPLS with λ as published: a map from divergence to confidence and its inverse, nested three deep.

    `offset` is what the authors' code adds to the second argument of each divergence (1e-8), their formula does not.
    """
    uniform = np.full_like(source, 1 / source.size)

    def em(share: float) -> np.ndarray:
        prior = source
        for _ in range(100):
            prior = share * responsibilities(proba, source, prior).mean(axis=0) + (1 - share) * uniform
        return prior

    def divergence(p: np.ndarray, q: np.ndarray) -> float:
        return float(sum(a * np.log(a / (b + offset)) for a, b in zip(p, q, strict=True) if a > 0))

    def confidence(d: float, steepness: float) -> float:
        return steepness * d / (1 + steepness * d)

    def steepness(d: float, conf: float) -> float:  # such that confidence(d, steepness) = conf
        return (1 / (1 - conf) - 1) / d

    fitted = em(1.0)
    source_conf = 1 - confidence(divergence(source, uniform), steepness(0.5, 0.2))
    bend = steepness(0.5, source_conf)
    from_uniform, from_source = (confidence(divergence(fitted, other), bend) for other in (uniform, source))
    return em(0.9 * from_uniform + 0.1 * (1 - from_source))


def test_mapls_is_the_published_formula(case: Case) -> None:
    source, proba = case
    ours = rp.mapls(source, proba).prior
    np.testing.assert_allclose(ours, published_mapls(source.prior, proba, 0.0), rtol=0, atol=1e-9)
    # their code's 1e-8 inside the logarithm is all that is left between the two
    np.testing.assert_allclose(ours, published_mapls(source.prior, proba, 1e-8), rtol=0, atol=1e-6)


# -- bbse against abstention's BBSE, and against a general bounded least-squares solver -------------------------------


@pytest.fixture(scope="module")
def abstention_bbse() -> type:
    pytest.importorskip("abstention", exc_type=ImportError)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports a deprecated SciPy module
        from abstention.label_shift import BBSEImbalanceAdapter
    return BBSEImbalanceAdapter


@pytest.mark.filterwarnings("ignore:Importing abstention")
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("name", ["K=5", "K=12"])
def test_bbse_solved_and_clipped_is_abstentions(name: str, hard: bool, abstention_bbse: type) -> None:
    source, proba = CASES[name]()
    heldout, y = source.heldout
    labels = np.eye(heldout.shape[1])[y]
    weights = abstention_bbse(soft=not hard)(labels, proba, heldout).multipliers
    theirs = weights * labels.mean(axis=0)
    ours = rp.bbse(source, proba, hard=hard, solver="clip").prior
    np.testing.assert_allclose(ours, theirs / theirs.sum(), rtol=0, atol=1e-9)
    if (weights > 0).all():  # then nothing was clipped, and the constraint does not bind either
        np.testing.assert_allclose(rp.bbse(source, proba, hard=hard).prior, ours, rtol=0, atol=1e-9)


@pytest.mark.parametrize("hard", [False, True])
def test_bbse_constrained_fits_as_well_as_scipys_trust_region(case: Case, hard: bool) -> None:
    source, proba = case
    confusion = source.hard_confusion if hard else source.confusion
    mean = np.eye(len(confusion))[proba.argmax(axis=1)].mean(axis=0) if hard else proba.mean(axis=0)
    theirs = lsq_linear(confusion, mean, bounds=(0, np.inf), method="trf", tol=1e-14, max_iter=2000).x
    ours = rp.bbse(source, proba, hard=hard).prior / confusion.sum(axis=0)
    ours *= (confusion @ ours) @ mean / np.square(confusion @ ours).sum()  # π sums to one, w·P(y) need not
    misfit = np.linalg.norm(confusion @ theirs - mean)
    assert np.linalg.norm(confusion @ ours - mean) <= misfit + 1e-7
    assert misfit < np.linalg.norm(confusion @ np.ones_like(theirs) - mean)


# -- rlls against a general convex solver -----------------------------------------------------------------------------


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("name", list(CASES))
def test_rlls_reaches_the_minimum_of_its_printed_objective(name: str, hard: bool) -> None:
    """Against the objective of azizzadenesheli2019: SciPy's SLSQP finds nothing lower, and convexity proves it."""
    source, proba = CASES[name]()
    confusion = source.hard_confusion if hard else source.confusion
    k, n = len(confusion), source.counts.sum()
    mean = np.eye(k)[proba.argmax(axis=1)].mean(axis=0) if hard else proba.mean(axis=0)
    change = mean - confusion.sum(axis=1)
    strength = 0.01 * 3 * (2 * np.log(2 * k / 0.05) / (3 * n) + np.sqrt(2 * np.log(2 * k / 0.05) / n))

    def objective(theta: np.ndarray) -> float:
        return float(np.linalg.norm(confusion @ theta - change) + strength * np.linalg.norm(theta))

    def slope(theta: np.ndarray) -> np.ndarray:
        residual = confusion @ theta - change
        return confusion.T @ residual / np.linalg.norm(residual) + strength * theta / np.linalg.norm(theta)

    ours = regularised_shift(confusion, change, strength)
    assert ours.min() >= -1
    assert objective(ours) < objective(np.zeros(k))
    prior = (1 + ours) * confusion.sum(axis=0)
    np.testing.assert_allclose(rp.rlls(source, proba, hard=hard).prior, prior / prior.sum(), rtol=0, atol=1e-12)
    if k < 20:
        theirs = minimize(objective, np.full(k, 1e-3), jac=slope, method="SLSQP", bounds=[(-1, None)] * k,
                          options={"ftol": 1e-13, "maxiter": 1000})  # fmt: skip
        assert objective(ours) <= theirs.fun * (1 + 1e-7)
    else:  # SLSQP is slow here; a tangent lies below, and no minimiser is farther out than its norm can pay for
        farthest = objective(np.zeros(k)) / strength
        ends = -slope(ours) * (np.array([[-1.0], [farthest]]) - ours)
        assert ends.max(axis=0).sum() < 1e-3 * objective(ours)


# -- fmapls, as printed, against Algorithm 1 written out --------------------------------------------------------------


def algorithm_1(
    source: np.ndarray, proba: np.ndarray, n_iter: int, *, c: float = 0.0, mu: float = 0.0, n_grad: int = 0
) -> tuple[np.ndarray, float]:
    """FMAPLS of hu2025 line by line; LSF if `c`, else gradient ascent. Returns π and the smallest numerator met."""
    k = source.size
    alpha, prior, least = np.ones(k), np.full(k, 1 / k), np.inf
    for _ in range(n_iter):
        r = responsibilities(proba, source, prior)
        numerator = np.array([alpha[j] - 1 + sum(r[:, j]) for j in range(k)])  # eq. 9
        least = min(least, numerator.min())
        prior = numerator / numerator.sum()
        if c:
            alpha = c / prior.max() * prior  # eq. 15
        else:
            for _ in range(n_grad):
                alpha = alpha + mu * (-digamma(alpha) + digamma(alpha.sum()) + np.log(prior))  # eq. 10
    return prior, least


@pytest.mark.parametrize("k", [5, 12])
def test_fmapls_paper_lsf_is_algorithm_1(k: int) -> None:
    source, proba = exact_case(k, 900, alpha=30.0)
    n = len(proba)
    for c in (n / 2, float(n), 4.0 * n):
        theirs, least = algorithm_1(source.prior, proba, 40, c=c)
        assert least > 0, "no floor was needed, so the two must agree"
        ours = rp.fmapls(source, proba, variant="paper", c=c, n_iter=40).prior
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("k", [5, 12])
def test_fmapls_paper_gradient_ascent_is_algorithm_1(k: int) -> None:
    source, proba = exact_case(k, 900, alpha=30.0)
    theirs, least = algorithm_1(source.prior, proba, 30, mu=0.01, n_grad=10)
    assert least > 0
    ours = rp.fmapls(source, proba, variant="paper", update="ga", n_iter=30, mu=0.01, n_grad=10).prior
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


# -- ebls against quadrature, which two and three classes allow -------------------------------------------------------


def integrate(likelihood: np.ndarray, alpha: np.ndarray, temper: float, grid: np.ndarray) -> tuple[float, ...]:
    """Log evidence of a Dirichlet prior, mean and variance of the shares, summed over `grid` (g, K) in u = log π."""
    density = gammaln(alpha.sum()) - gammaln(alpha).sum() + np.log(grid) @ alpha  # dπ = Π π du, one u left out
    log_post = density + temper * np.log(grid @ likelihood.T).sum(axis=1)
    weight = np.exp(log_post - logsumexp(log_post))
    return float(logsumexp(log_post)), weight @ grid, weight @ (grid - weight @ grid) ** 2


