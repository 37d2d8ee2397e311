import pytest
from trained_runs import KINDS, train


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory):
    """The folder of a finished run by its kind, made when it is first asked for; not to be
    changed."""
    made = {}

    def run(kind: str):
        assert kind in KINDS
        if kind not in made:
            made[kind] = train(kind, tmp_path_factory.mktemp(kind))
        return made[kind]

    return run
