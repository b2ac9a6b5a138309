"""One thread and a fixed seed: tensors are small here, and threads only wait for each other."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch, of the extra normstorm[torch]")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
