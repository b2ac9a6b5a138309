"""The update's kernels against plain operations, and whole runs on a GPU; all of it needs one."""

import io

import pytest
import torch
from torch import Tensor, nn

from normstorm.torch import NormalizedStorm, spectral_storm, triton_launch, updates

needs_gpu = pytest.mark.skipif(
    not (torch.cuda.is_available() and triton_launch.available()), reason="needs a CUDA device and Triton"
)


@pytest.fixture(autouse=True)
def _however_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors would be left to plain operations."""
    monkeypatch.setattr(triton_launch, "MANY", 0)


SHAPES = [(1,), (7,), (1024,), (8193,), (100, 333), (3, 5, 7, 11), (0, 4)]


def numbers(dtype: torch.dtype) -> list[Tensor]:
    """Odd sizes, an empty one, and one whose axes lie in another order."""
    plain = [torch.randn(shape, device="cuda", dtype=dtype) for shape in SHAPES]
    turned = torch.randn(8, 16, 5, 5, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
    return [*plain, turned]


def copies(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.clone() for tensor in tensors]


def apart(some: list[Tensor], others: list[Tensor]) -> float:
    """Largest difference, in units in the last place of 1 of the first list."""
    unit = torch.finfo(some[0].dtype).eps
    pairs = zip(some, others, strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs if a.numel()) / unit


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("keep", "take"), [(0.9, 0.1), (0.0, 1.0), (1.0, 0.25)])
def test_lerp(dtype: torch.dtype, keep: float, take: float) -> None:
    m, g = numbers(dtype), numbers(dtype)
    exact = [keep * a.double() + take * b.double() for a, b in zip(m, g, strict=True)]
    sums = updates.lerp_(m, g, keep, take, True)
    assert apart(m, exact) <= 4
    assert sums is not None
    torch.testing.assert_close(sums.double(), sum((a.double() ** 2).sum() for a in m), rtol=1e-6, atol=0)
    assert torch.equal(triton_launch.squares(m), sums)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [0.037, "tensor"])
def test_axpy_and_axpy_lerp(dtype: torch.dtype, length: float | str) -> None:
    x, m, g = numbers(dtype), numbers(dtype), numbers(dtype)
    by = torch.tensor(0.037, device="cuda") if length == "tensor" else length
    moved = [0.99 * a.double() - 0.037 * b.double() for a, b in zip(x, m, strict=True)]
    next_m = [0.9 * a.double() - 0.8 * b.double() for a, b in zip(m, g, strict=True)]
    one, two = copies(x), copies(x)
    updates.axpy_(one, m, 0.99, by, True)
    updates.axpy_lerp_(two, m, g, 0.99, by, 0.9, -0.8, True)
    assert apart(one, moved) <= 4
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert apart(m, next_m) <= 4


@needs_gpu
def test_the_kernels_refuse_what_they_cannot_take() -> None:
    wide = torch.randn(10, 20, device="cuda")
    assert triton_launch.serve(None, [wide], [wide])
    assert not triton_launch.serve(None, [wide[:, :7]], [wide[:, :7]])  # gaps
    assert not triton_launch.serve(None, [wide[1:].flatten()[1:]], [wide[1:].flatten()[1:]])  # not aligned
    assert not triton_launch.serve(None, [wide], [wide.T.contiguous().T])  # another order of axes
    assert not triton_launch.serve(None, [wide.double()], [wide.double()])
    with pytest.raises(ValueError, match="fused must be None or False here"):
        triton_launch.serve(True, [wide.double()], [wide.double()])


def test_without_a_gpu_the_kernels_serve_nobody() -> None:
    here = [torch.randn(8)]
    assert not triton_launch.serve(None, here, here)
    with pytest.raises(ValueError, match="fused must be None or False here"):
        triton_launch.serve(True, here, here)


class Net(nn.Module):
    def __init__(self, drop: float = 0.3) -> None:
        super().__init__()
        self.conv, self.hidden, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8 * 36, 64), nn.Linear(64, 10)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.tanh(self.hidden(torch.tanh(self.conv(x)).flatten(1)))))


def trained(make, steps: int = 20, resume: int | None = None, scaled: bool = False, drop: float = 0.3) -> list[Tensor]:
    """Weights after some steps on given batches; interrupted and loaded anew at `resume`."""
    torch.manual_seed(1)
    x, y = torch.randn(steps, 32, 3, 8, 8, device="cuda"), torch.randint(10, (steps, 32), device="cuda")
    model = Net(drop).cuda()
    optimizer, scaler = make(model), torch.amp.GradScaler("cuda", init_scale=64.0)
    for t in range(steps):
        if t == resume:
            file = io.BytesIO()
            torch.save((model.state_dict(), optimizer.state_dict(), torch.cuda.get_rng_state()), file)
            file.seek(0)
            model = Net(drop).cuda()
            optimizer = make(model)
            weights, state, random = torch.load(file, weights_only=True)
            model.load_state_dict(weights)
            optimizer.load_state_dict(state)
            torch.cuda.set_rng_state(random)
        one_step(optimizer, model, (x[t], y[t]), scaler if scaled else None)
    return [p.detach().clone() for p in model.parameters()]


def one_step(optimizer: NormalizedStorm, model: Net, batch: tuple[Tensor, Tensor], scaler) -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x), y)

    if scaler is None:
        optimizer.step(loss, batch=batch)
        return
    with torch.autocast("cuda", torch.float16):
        with optimizer.old_point(scaler=scaler):
            scaler.scale(loss(*batch)).backward()
        with optimizer.new_point():
            scaler.scale(loss(*batch)).backward()
    scaler.step(optimizer)
    scaler.update()


def storm(**options):
    return lambda model: NormalizedStorm(model.parameters(), 0.005, 0.9, **options)


@needs_gpu
@pytest.mark.parametrize("options", [{}, {"correction": 0.0}, {"weight_decay": 0.1}], ids=str)
def test_fused_and_plain_agree(options: dict) -> None:
    plain = trained(storm(fused=False, **options))
    for other in (storm(**options), storm(memory="lean", **options)):
        assert apart(plain, trained(other)) <= 64


@needs_gpu
@pytest.mark.parametrize("memory", ["fast", "lean"])
@pytest.mark.parametrize("make", [storm, lambda **o: lambda model: spectral_storm(model, 0.01, **o)])
def test_resume_is_exact(memory: str, make) -> None:
    torch.backends.cudnn.deterministic = True
    whole, parts = trained(make(memory=memory)), trained(make(memory=memory), resume=9)
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))


def between(some: list[Tensor], others: list[Tensor]) -> float:
    return sum(float((a - b).norm() ** 2) for a, b in zip(some, others, strict=True)) ** 0.5


@needs_gpu
def test_half_precision_with_a_scaler_stays_near() -> None:
    """Without dropout, whose masks depend on the precision."""
    start, full = trained(storm(), steps=1, drop=0.0), trained(storm(), drop=0.0)
    half = trained(storm(), scaled=True, drop=0.0)
    assert between(full, half) <= 0.2 * between(full, start)


@needs_gpu
def test_lean_memory_holds_two_copies() -> None:
    layers = [nn.Linear(4096, 4096, bias=False, device="cuda") for _ in range(8)]
    model = nn.Sequential(*layers)
    optimizer = NormalizedStorm(model.parameters(), 1e-3, memory="lean")
    x = torch.randn(4, 4096, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        optimizer.step(lambda x: model(x).square().mean(), batch=x)
    one = 4 * sum(p.numel() for p in model.parameters())
    assert torch.cuda.max_memory_allocated() <= 2.5 * one


@needs_gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own
def test_compiled_update_agrees() -> None:
    def run(compiled: bool) -> list[Tensor]:
        torch.manual_seed(2)
        model = Net().cuda()
        optimizer = NormalizedStorm(model.parameters(), 0.01, correction=0.0)
        step = torch.compile(optimizer.step) if compiled else optimizer.step
        for _ in range(4):
            for p in model.parameters():
                p.grad = torch.randn_like(p)
            step()
        return [p.detach().clone() for p in model.parameters()]

    assert apart(run(False), run(True)) <= 64
