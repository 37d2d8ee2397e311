from pathlib import Path

import pytest

from steppe.errors import ConfigurationError
from steppe.utils.user_code import made_by

RECORD = "secret row 17: John Smith"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def build(:\n", "SyntaxError"),
        ("import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'"),
    ],
)
def test_a_module_that_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    (tmp_path / "broken_user_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        made_by("broken_user_module:build", "model")
    message = str(caught.value)
    assert message.startswith("model='broken_user_module:build': cannot be imported: ")
    assert reason in message
    assert message.endswith("write module:factory, and run where `import module` works.")


def test_a_module_that_fails_on_its_records_is_not_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loud_user_module.py").write_text(f"\nraise KeyError({RECORD!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        made_by("loud_user_module:build", "place")
    assert str(caught.value) == (
        "place='loud_user_module:build': cannot be imported: KeyError at loud_user_module.py:2; "
        'see the whole error with python -c "import loud_user_module".'
    )


FACTORY = f"""
def check(row):
    raise ValueError({RECORD!r})


def build():
    return [check(row) for row in range(3)]


def wants(argument):
    return argument
"""


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("build", "raised ValueError at quoting_user_module.py:3"),
        ("wants", "raised TypeError at the call without arguments"),
    ],
)
def test_a_factory_that_fails_is_named_by_its_place_and_not_by_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, rule: str
) -> None:
    (tmp_path / "quoting_user_module.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        made_by(f"quoting_user_module:{name}", "place")
    how = f'python -c "import quoting_user_module; quoting_user_module.{name}()"'
    expected = f"place='quoting_user_module:{name}': {rule}; see the whole error with {how}."
    assert str(caught.value) == expected
    assert type(caught.value.__cause__).__name__ in rule  # with its words, for a traceback
