"""FlexAttention, inference: exact by two calls, and its logsumexp is checked before it is used."""

import pytest
import torch
import torch.nn.attention.flex_attention as flex_attention
from test_gate import KAPPAS, inputs

from edgewise.core.errors import EdgewiseError
from edgewise.kernels.dispatch import gated_attention
from edgewise.kernels.equations import GateSpec, reference, visible_keys
from edgewise.kernels.flex import check_natural_lse

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
HAS_AUX = hasattr(flex_attention, "AuxRequest")
needs_aux = pytest.mark.skipif(
    not HAS_AUX, reason="FlexAttention gives its logsumexp this way since torch 2.9"
)


@pytest.mark.skipif(HAS_AUX, reason="this torch has what the backend needs")
def test_an_older_torch_is_refused_in_a_sentence():
    with pytest.raises(EdgewiseError, match=r"needs torch 2\.9"):
        gated_attention(*inputs(1, 1, 1, 5, 5, 8), GateSpec(1.0, "deterministic", 1.0), backend="flex")


@needs_aux
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("hides", ["nothing", "mask", "starts"])
@pytest.mark.parametrize("kappa", KAPPAS)
def test_flex_equals_the_reference(kappa, hides, dtype):
    """Two query heads to a key/value head, a closed head, a head whose rows are all closed, padded queries, no sinks."""
    tensors = inputs(2, 2, 2, 21, 27, 8, dtype=dtype)
    tensors[3].add_(2.0)[1] = -50.0
    closed = torch.tensor([True, False, False, False])
    draw = torch.Generator().manual_seed(0)
    mask = starts = None
    if hides == "mask":
        mask = visible_keys(21, 27, torch.rand(2, 1, 21, 27, generator=draw) > 0.3, torch.device("cpu"))
        mask[0, :, :4] = False
    if hides == "starts":
        starts = torch.randint(0, 28, (2, 21), generator=draw)
    for sinks in (True, False):
        spec = GateSpec(kappa, "deterministic", 0.4, mask, sinks, starts=starts, closed=closed)
        expected = reference(*tensors, spec)
        got = gated_attention(*tensors, spec, backend="flex")
        assert torch.equal(got.open_edges, expected.open_edges) and expected.open_edges.sum() > 20
        tolerance = 1e-12 if dtype == torch.float64 else 1e-5
        torch.testing.assert_close(got.y, expected.y, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(got.expected_edges, expected.expected_edges, rtol=1e-4, atol=tolerance)
        uncounted = gated_attention(*tensors, spec._replace(counts=False), backend="flex")
        assert torch.equal(uncounted.y, got.y) and uncounted.open_edges.isnan().all()


@needs_aux
def test_a_logsumexp_in_other_units_is_refused():
    """As that of the FLASH backend once was, by ln 2 (pytorch#181645)."""
    from torch.nn.attention.flex_attention import AuxOutput, flex_attention

    def scaled(*args, **kwargs):
        y, aux = flex_attention(*args, **kwargs)
        return y, AuxOutput(lse=aux.lse * 0.6931)

    check_natural_lse(flex_attention, torch.device("cpu"), torch.float32)
    with pytest.raises(EdgewiseError, match="returns a logsumexp that is off by"):
        check_natural_lse(scaled, torch.device("cpu"), torch.float32)


@needs_aux
def test_flex_refuses_what_it_cannot_do():
    tensors = inputs(1, 1, 1, 5, 5, 8)
    with pytest.raises(EdgewiseError, match="deterministic gates only"):
        gated_attention(*tensors, GateSpec(1.0, "sample", 1.0), backend="flex")
    y = gated_attention(
        tensors[0].requires_grad_(), *tensors[1:], GateSpec(1.0, "deterministic", 1.0), backend="flex"
    ).y
    with pytest.raises(EdgewiseError, match="no backward pass"):
        y.sum().backward()
