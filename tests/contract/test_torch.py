"""Tensors in, tensors out, on their device, with their type and their gradient."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import reprior as rp  # noqa: E402
from reprior.adapters import torch as rt  # noqa: E402

COUNTS = np.array([50.0, 30.0, 20.0])


@pytest.fixture
def proba():
    return torch.softmax(2 * torch.randn(200, 3, generator=torch.Generator().manual_seed(0)), dim=1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_same_answer_as_on_arrays(proba, dtype):
    x = proba.double()
    x = (x / x.sum(dim=1, keepdim=True)).to(dtype)
    prior, corrected = rt.adapt(COUNTS, x)
    array = x.double().numpy()
    array = array / array.sum(axis=1, keepdims=True)
    expected = rp.ebls(COUNTS, array)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-6}.get(dtype, 2e-2)
    np.testing.assert_allclose(prior.double().numpy(), expected.prior, atol=tolerance)
    np.testing.assert_allclose(corrected.double().numpy(), expected.correct(array), atol=tolerance)
    assert corrected.dtype == dtype
    assert corrected.device == x.device


def test_gradients_flow_through_the_correction_and_not_through_the_estimate(proba):
    logits = proba.log().requires_grad_()
    outputs = logits.softmax(dim=1)
    estimate = rt.estimate(COUNTS, outputs, "mlls")
    torch.nn.functional.nll_loss(
        rt.correct(outputs, estimate.weights).log(), torch.zeros(200, dtype=torch.long)
    ).backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert logits.grad.abs().sum() > 0


def test_logits_and_probabilities_are_corrected_alike(proba):
    weights = np.array([0.5, 1.0, 3.0])
    a = rt.correct(proba.double(), weights)
    b = rt.correct_logits(proba.double().log(), weights).softmax(dim=1)
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(rt.correct(proba, torch.tensor(weights)), a.float())


def test_in_an_evaluation_loop_of_a_training():
    torch.manual_seed(0)
    centres = torch.randn(3, 5)

    def draw(n, prior):
        y = torch.multinomial(torch.tensor(prior), n, replacement=True)
        return centres[y] + torch.randn(n, 5), y

    model = torch.nn.Linear(5, 3)
    optimiser = torch.optim.Adam(model.parameters(), 0.1)
    x, y = draw(1000, [0.6, 0.3, 0.1])
    new, truth = draw(1000, [0.1, 0.2, 0.7])
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.inference_mode():
        outputs = model(new).softmax(dim=1)
        prior, corrected = rt.adapt(torch.bincount(y), outputs)
    assert (prior - torch.bincount(truth) / 1000).abs().max() < 0.05
    assert (corrected.argmax(1) == truth).float().mean() > (outputs.argmax(1) == truth).float().mean()


def test_refusals(proba):
    with pytest.raises(rp.InputError, match="be a tensor"):
        rt.estimate(COUNTS, proba.numpy())
    with pytest.raises(rp.InputError, match="negative"):
        rt.adapt(COUNTS, proba.log())
    with pytest.raises(rp.InputError, match=r"shape \(n, 3\)"):
        rt.correct(proba[:, :2], np.ones(3))
