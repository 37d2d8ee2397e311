import shutil
from pathlib import Path

import pytest
from cli_calls import Shell
from cli_runs import write_project

from steppe.cli import main


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with one finished run, not to be changed."""
    folder = tmp_path_factory.mktemp("project")
    write_project(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "run.toml", "--run", "run"]) == 0
    return folder


@pytest.fixture
def project(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to work in, as the current folder."""
    folder = tmp_path / "project"
    shutil.copytree(trained, folder)
    toml = folder / "run" / "run.toml"  # names the data by their full path
    toml.write_text(toml.read_text().replace(str(trained), str(folder)))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    return folder
