import pytest

from holdfast.core.types import ConfigError
from holdfast.core.view.selectors import parse_selector

LABELS = {"app": "llama", "tier": "gpu", "example.org/role": "a", "empty": ""}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "app=llama",
        "app == llama",
        "app=llama,tier=gpu",
        "app = llama , tier != cpu",
        "app in (llama, qwen)",
        "tier notin (cpu,none)",
        "tier notin (cpu), app in (llama),example.org/role",
        "missing!=x",
        "missing notin (x)",
        "!missing",
        "app,!missing",
        "empty=",
        "empty in ()",
    ],
)
def test_labels_that_fit_are_chosen(text):
    assert parse_selector(text)(LABELS)


@pytest.mark.parametrize(
    "text",
    [
        "app=qwen",
        "app!=llama",
        "app in (qwen)",
        "app notin (llama)",
        "missing",
        "missing=",
        "!app",
        "app=llama,tier=cpu",
        "missing in (x)",
    ],
)
def test_others_are_not(text):
    assert not parse_selector(text)(LABELS)


@pytest.mark.parametrize(
    "text",
    [
        "app=llama,",
        ",app",
        "app==",
        "app=llama=x",
        "app in llama",
        "app in (llama",
        "app in (a b)",
        "app like x",
        "a b",
        "=x",
        "!",
        "app=-x",
        "app\x00",
        ",".join(f"a{n}" for n in range(33)),
    ],
)
def test_what_is_no_selector_is_refused(text):
    if text == "app==":
        assert not parse_selector(text)(LABELS)  # kubectl reads it as an empty value too
        return
    with pytest.raises(ConfigError, match=r"selector"):
        parse_selector(text)
