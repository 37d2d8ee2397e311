from pathlib import Path

import pytest

from steppe._user_code import made_by
from steppe.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def build(:\n", "SyntaxError"),
        ("raise KeyError('weights.bin')\n", "KeyError: 'weights.bin'"),
        ("import os\nos.no_such_name\n", "AttributeError: module 'os' has no attribute"),
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
