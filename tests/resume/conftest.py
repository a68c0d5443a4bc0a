import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for `lives`, and for `killer` as the path of a class

from lives import SETTINGS, Outcome, fit, outcome  # noqa: E402


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Outcome]:
    """What a run with some settings leaves if nothing happens to it; each is run once."""
    done: dict[tuple[str, ...], Outcome] = {}

    def run(*settings: str) -> Outcome:
        if settings not in done:
            done[settings] = outcome(fit(tmp_path_factory.mktemp("whole"), *SETTINGS, *settings))
        return done[settings]

    return run
