"""S4D and H3 against scipy.signal, RG-LRU against RecurrentGemma in transformers with copied weights."""

import numpy as np
import pytest
import scipy.linalg
import scipy.signal
import torch
from torch import nn

from repflow.mixers import build
from repflow.mixers.diagonal_ssm import DiagonalSSM, initial_rates, long_convolution
from repflow.mixers.rg_lru import _initial_decay, bounded_root
from repflow.mixers.scan.forms import recurrence

WIDTH, TOKENS = 8, 30


@pytest.fixture
def x():
    return torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def scipy_response(ssm, channel, u):
    """Output of one channel's SSM: the continuous system with both halves of each pair, sampled by scipy."""
    rates = ssm.rates()[channel].detach().numpy()
    weight = torch.view_as_complex(ssm.C)[channel].detach().numpy()
    A, C = np.diag(np.concatenate([rates, rates.conj()])), np.concatenate([weight, weight.conj()])
    B = np.ones((len(A), 1))
    step = float(ssm.log_dt.detach().exp()[channel])
    # scipy moves C and D for the bilinear rule too, to read between the samples; S4 reads h as it is
    Ad, Bd, *_ = scipy.signal.cont2discrete((A, B, C[None], np.zeros((1, 1))), step, method=ssm.discretisation)
    state, out = np.zeros(len(A), dtype=complex), []
    for value in u:
        state = Ad @ state + Bd[:, 0] * value
        out.append(C @ state)
    out = np.array(out)
    assert np.abs(out.imag).max() < 1e-9
    return out.real


@pytest.mark.parametrize("init", ["lin", "inv", "legs"])
@pytest.mark.parametrize("discretisation", ["zoh", "bilinear"])
def test_s4d_is_scipys_sampled_system(x, discretisation, init):
    torch.manual_seed(0)
    ours = build("s4d", WIDTH, state=6, discretisation=discretisation, init=init).double()
    fast = ours.kernel(x).detach().numpy()
    slow = recurrence(ours.transition(x)).detach().numpy()
    for channel in range(WIDTH):
        wanted = scipy_response(ours.kernel, channel, x[0, :, channel].numpy())
        scale = np.abs(wanted).max()
        assert np.abs(fast[0, :, channel] - wanted).max() < 1e-10 * scale
        assert np.abs(slow[0, :, channel] - wanted).max() < 1e-10 * scale


def test_s4d_layer_is_skip_gelu_glu(x):
    torch.manual_seed(0)
    ours = build("s4d", WIDTH, state=4).double()
    wanted = np.stack(
        [scipy_response(ours.kernel, channel, x[1, :, channel].numpy()) for channel in range(WIDTH)], axis=1
    )
    y = nn.functional.gelu(torch.from_numpy(wanted) + ours.D * x[1])
    first, second = ours.output_linear(y).chunk(2, dim=-1)
    torch.testing.assert_close(ours(x)[1], first * second.sigmoid(), rtol=1e-9, atol=1e-11)


def test_kernel_is_accurate_over_many_tokens_in_float32():
    torch.manual_seed(0)
    ssm = DiagonalSSM(4, state=64)
    rough, tokens = ssm.kernel(5000), 5000
    exact = ssm.double()
    wanted = torch.stack([power_kernel(exact, number) for number in range(4)])
    assert wanted.shape[1] == tokens
    scale = float(wanted.abs().max())
    assert float((exact.kernel(tokens) - wanted).abs().max()) < 1e-10 * scale
    # 1.5e-6 with rates and powers in float32
    assert float((rough - wanted).abs().max()) < 5e-7 * scale


def power_kernel(ssm, channel, tokens=5000):
    """Impulse response by repeated multiplication."""
    log_decay, entry, step = ssm.discretise()
    decay = log_decay[channel].exp().detach().numpy()
    state = (entry * step[:, None])[channel].detach().numpy()
    weight = 2 * torch.view_as_complex(ssm.C)[channel].detach().numpy()
    out = []
    for _ in range(tokens):
        out.append((weight @ state).real)
        state = decay * state
    return torch.tensor(np.array(out))


def test_legs_rates_are_hippos_eigenvalues():
    """HiPPO-LegS A_nk = −√(2n+1)√(2k+1) (n > k), −(n+1) (n = k); its normal part is A + P Pᵀ, P_n = √(n + 1/2)."""
    size = 16
    n = np.arange(size)
    root = np.sqrt(2 * n + 1)
    hippo = -np.tril(np.outer(root, root), -1) - np.diag(n + 1.0)
    normal = hippo + 0.5 * np.outer(root, root)
    eigenvalues = scipy.linalg.eigvals(normal)
    assert np.abs(eigenvalues.real + 0.5).max() < 1e-10
    wanted = np.sort(eigenvalues.imag)[size // 2 :]
    got = initial_rates("legs", size // 2)
    np.testing.assert_allclose(got.imag.numpy(), wanted, rtol=1e-5)
    assert got.real.tolist() == [-0.5] * 8


def test_inv_and_lin_rates_are_the_papers():
    np.testing.assert_allclose(initial_rates("lin", 3).imag.numpy(), [0, np.pi, 2 * np.pi], rtol=1e-6)
    wanted = [6 / np.pi * (6 / (2 * n + 1) - 1) for n in range(3)]
    np.testing.assert_allclose(initial_rates("inv", 3).imag.numpy(), wanted, rtol=1e-6)


def test_step_sizes_start_log_uniform():
    torch.manual_seed(0)
    steps = DiagonalSSM(20_000, state=2, dt_min=0.01, dt_max=1.0).log_dt.detach().exp()
    assert float(steps.min()) >= 0.01
    assert float(steps.max()) <= 1.0
    assert abs(float((steps < 0.1).double().mean()) - 0.5) < 0.02


def test_long_convolution_is_scipys(x):
    kernel = torch.randn(WIDTH, TOKENS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for channel in range(WIDTH):
        expected = scipy.signal.lfilter(kernel[channel].numpy(), [1.0], x[0, :, channel].numpy())
        np.testing.assert_allclose(long_convolution(x, kernel)[0, :, channel].numpy(), expected, rtol=1e-10, atol=1e-12)


def test_diagonal_ssm_runs_with_bfloat16_parameters():
    torch.manual_seed(0)
    ssm, u = DiagonalSSM(4, state=8), torch.randn(1, 40, 4)
    half = DiagonalSSM(4, state=8)
    half.load_state_dict(ssm.state_dict())
    out = half.bfloat16()(u.bfloat16())
    assert out.dtype == torch.bfloat16
    assert float((out - ssm(u)).detach().abs().max()) < 0.05 * float(ssm(u).detach().abs().max())


@pytest.mark.parametrize("head_dim", [1, 2])
@pytest.mark.parametrize(("discretisation", "conv"), [("bilinear", None), ("zoh", 3), ("bilinear", 0)])
def test_h3_is_filter_product_and_scipys_system(x, head_dim, discretisation, conv):
    """The layer head by head: keys through lfilter, each product with a value through the sampled system."""
    torch.manual_seed(0)
    ours = build("h3", WIDTH, state=4, head_dim=head_dim, discretisation=discretisation, conv=conv).double()
    with torch.no_grad():
        q, k, v = (layer(x)[0].numpy() for layer in (ours.q_proj, ours.k_proj, ours.v_proj))
        if conv != 0:
            taps = ours.shift.weight[:, 0].flip(-1).numpy()  # torch's first tap is the oldest token
            assert taps.shape[1] == (4 if conv is None else conv)
            skip = ours.shift_D.numpy() * k
            k = np.stack([scipy.signal.lfilter(taps[c], [1.0], k[:, c]) for c in range(WIDTH)], axis=1) + skip
        out = np.zeros((TOKENS, WIDTH))
        for head in range(WIDTH // head_dim):
            for value in range(head_dim):
                for key in range(head_dim):
                    i, j = head * head_dim + value, head * head_dim + key
                    product = v[:, i] * k[:, j]
                    y = scipy_response(ours.kernel, head, product) + float(ours.D[head]) * product
                    out[:, i] += q[:, j] * y
        wanted = ours.output_linear(torch.from_numpy(out))
        torch.testing.assert_close(ours(x)[0], wanted, rtol=1e-9, atol=1e-11)


def recurrent_gemma(heads, **options):
    from transformers import RecurrentGemmaConfig
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRecurrentBlock

    config = RecurrentGemmaConfig(hidden_size=WIDTH, num_attention_heads=heads, **options)
    block = RecurrentGemmaRecurrentBlock(config, 0)
    generator = torch.Generator().manual_seed(0)
    for parameter in block.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.5
    return block


@pytest.mark.parametrize(("heads", "width", "conv"), [(2, 8, 4), (4, 12, 4), (1, 8, 2)])
def test_rg_lru_is_recurrent_gemmas(x, heads, width, conv):
    oracle = recurrent_gemma(heads, lru_width=width, conv1d_width=conv)
    ours = build("rg_lru", WIDTH, heads=heads, expand=width / WIDTH, conv=conv)
    ours.load_state_dict(oracle.state_dict())
    x = x.float()
    positions = torch.arange(TOKENS).expand(2, -1)
    wanted, _ = oracle(x, positions, None, use_cache=False)
    torch.testing.assert_close(ours(x), wanted, rtol=1e-4, atol=1e-5)
    # the RG-LRU alone, whatever the gate and the projection make of it
    inner = oracle.conv_1d(oracle.linear_x(x).mT)[..., :TOKENS].mT
    oracle.rg_lru.recurrent_states = None
    torch.testing.assert_close(recurrence(ours.transition(x)), oracle.rg_lru(inner, positions), rtol=1e-4, atol=1e-5)


def test_rg_lru_starts_as_recurrent_gemma():
    from transformers import RecurrentGemmaConfig, RecurrentGemmaModel

    torch.manual_seed(0)
    config = RecurrentGemmaConfig(
        hidden_size=512, num_attention_heads=4, lru_width=512, num_hidden_layers=1, intermediate_size=8, vocab_size=8
    )
    theirs = RecurrentGemmaModel(config).layers[0].temporal_block.rg_lru.recurrent_param.detach()
    ours = _initial_decay(512, 0.9, 0.999)
    quantiles = torch.linspace(0.05, 0.95, 7)
    for param in (theirs, ours):
        decay = (-nn.functional.softplus(param)).exp()
        assert float(decay.min()) >= 0.9
        assert float(decay.max()) <= 0.9991
    spread = float(theirs.quantile(0.95) - theirs.quantile(0.05))
    torch.testing.assert_close(ours.quantile(quantiles), theirs.quantile(quantiles), rtol=0, atol=0.1 * spread)


def test_bounded_root_is_the_root_with_a_bounded_slope():
    x = torch.tensor([0.25, 1e-4, 0.0], dtype=torch.float64, requires_grad=True)
    root = bounded_root(x)
    assert root.tolist() == [0.5, 0.01, 0.0]
    root.sum().backward()
    assert x.grad.tolist() == pytest.approx([1.0, 50.0, 1000.0])


def test_rg_lru_gradients_stay_finite_where_nothing_is_forgotten():
    ours = build("rg_lru", WIDTH, heads=2)
    nn.init.constant_(ours.rg_lru.recurrent_param, -200.0)  # a = 1 to the last digit
    out = ours(torch.randn(1, 50, WIDTH))
    out.square().sum().backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in ours.parameters())


def test_first_token_enters_rg_lru_whole(x):
    ours = build("rg_lru", WIDTH, heads=2).double()
    delta = ours.transition(x).delta[..., 0]
    decay = ours.transition(x).A[..., 0]
    assert delta[:, 0].eq(1).all()
    torch.testing.assert_close(delta[:, 1:] ** 2 + decay[:, 1:] ** 2, torch.ones(2, TOKENS - 1, WIDTH).double())
