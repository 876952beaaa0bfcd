import pytest

from holdfast.core.near_names import LISTED_MAX, did_you_mean, fix_of_name


@pytest.mark.parametrize(
    ("word", "meant"),
    [("statsu", "did you mean 'status'?"), ("status", "did you mean 'status'?"), ("xyz", "")],
)
def test_the_nearest_word_is_named_or_none(word, meant):
    assert did_you_mean(word, ["status", "start"]) == meant


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("lama-2", "did you mean 'llama-2'?"),
        ("Llama-02", "did you mean 'llama-2'?"),
        ("llama-3", "there are llama-1, llama-2"),  # a wrong number: nobody knows whose
        ("lama", "there are llama-1, llama-2"),
        ("", "there are llama-1, llama-2"),
    ],
)
def test_an_id_is_near_only_with_the_same_numbers(name, fix):
    assert fix_of_name(name, ["llama-1", "llama-2"], "replicas") == fix


def test_a_list_is_bounded_and_may_be_empty():
    assert fix_of_name("m", [], "models") == "there are no models"
    many = [f"m-{number}" for number in range(LISTED_MAX + 1)]
    assert fix_of_name("x", many, "replicas") == f"there are {', '.join(many[:-1])}, …"
