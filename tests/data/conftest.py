import pytest


@pytest.fixture(autouse=True)
def no_run_seed(monkeypatch: pytest.MonkeyPatch):
    # seed_everything leaves it behind, and the order of samples depends on it.
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
