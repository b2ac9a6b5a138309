"""One thread, a fixed seed, and small portions: what large models do in pieces, small ones do here."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch, of the extra normstorm[torch]")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr("normstorm.torch.hooks.FEW", 1)
    monkeypatch.setattr("normstorm.torch.directions.TOGETHER", 30)
    monkeypatch.setattr("normstorm.torch.diagnosis.race.FRESH", 4)
