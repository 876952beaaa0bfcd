import pytest

from holdfast.control.fleet.checks import load_check
from holdfast.core.types import ConfigError


def test_a_named_function_is_loaded():
    assert load_check("os.path:isabs").__name__ == "isabs"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such_package_anywhere:check", "ModuleNotFoundError"),
        ("os.path:no_such_function", "AttributeError"),
        ("os.path:", "AttributeError"),
        (":isabs", "ValueError"),
        (".:isabs", "TypeError"),
        ("os.path:sep", "no function"),
        ("os.path", "AttributeError"),
    ],
)
def test_a_name_with_a_mistake_is_refused_with_what_is_wrong(name, why):
    with pytest.raises(ConfigError) as caught:
        load_check(name)
    assert caught.value.field == "canary.check"
    assert why in caught.value.problem
    assert "package.module:function" in caught.value.fix


def test_a_module_that_breaks_while_it_is_imported_is_refused_too(tmp_path, monkeypatch):
    (tmp_path / "broken_check.py").write_text("raise RuntimeError('at import')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_check("broken_check:check")
    assert "RuntimeError" in caught.value.problem
