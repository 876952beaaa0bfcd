import json

import pytest

from holdfast.gateway.api import routes
from holdfast.gateway.api.answers import AnswerKind
from holdfast.gateway.api.errors import ApiError
from holdfast.gateway.api.routes import Api


def refusal(method: bytes, path: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        routes.find(method, path)
    return caught.value


@pytest.mark.parametrize(
    ("method", "path", "api"),
    [
        (b"POST", b"/v1/chat/completions", Api.CHAT),
        (b"POST", b"/v1/completions", Api.COMPLETIONS),
        (b"POST", b"/v1/embeddings", Api.EMBEDDINGS),
        (b"POST", b"/v1/responses", Api.RESPONSES),
        (b"POST", b"/v1/rerank", Api.RERANK),
        (b"POST", b"/rerank", Api.RERANK),
        (b"POST", b"/v1/audio/speech", Api.SPEECH),
        (b"POST", b"/v1/audio/transcriptions", Api.TRANSCRIPTIONS),
        (b"POST", b"/v1/images/generations", Api.IMAGES),
        (b"GET", b"/v1/models", Api.MODELS),
        (b"GET", b"/v1/models/m", Api.MODEL),
        (b"GET", b"/v1/models/org/name", Api.MODEL),
        (b"GET", b"/v1/responses/resp_a-b_1", Api.RESPONSE),
        (b"HEAD", b"/v1/responses/resp_1", Api.RESPONSE),
        (b"DELETE", b"/v1/responses/resp_1", Api.RESPONSE),
        (b"POST", b"/v1/responses/resp_1/cancel", Api.RESPONSE),
        (b"GET", b"/v1/responses/resp_1/input_items", Api.RESPONSE),
        (b"POST", b"/v2/models/m/infer", Api.INFER),
        (b"POST", b"/v2/models/m/versions/3/infer", Api.INFER),
    ],
)
def test_every_path_finds_its_route(method, path, api):
    assert routes.find(method, path).api is api


def test_every_answer_has_a_reader():
    for route in routes.ROUTES.values():
        assert isinstance(route.answer, AnswerKind)
    assert routes.find(b"POST", b"/v2/models/m/infer").answer is AnswerKind.INFER


@pytest.mark.parametrize(
    "path",
    [
        b"/",
        b"",
        b"/v1",
        b"/v1/",
        b"//v1/models",
        b"/v1//models",
        b"/v1/models/",
        b"/v1/chat/completions/",
        b"/V1/chat/completions",
        b"/v1/../v1/chat/completions",
        b"/./v1/models",
        b"/v1%2fmodels",
        b"/v1/chat%2Fcompletions",
        b"/v1/chat/completions%00",
        b"/v1/chat/completions;x",
        b"/v2/models/infer",
        b"/v2/models//infer",
        b"/v2/models/m/infer/",
        b"/v2/models/org/name/infer",
        b"/v2/models/m/versions//infer",
        b"/v2/models/m/versions/latest/infer",
        b"/v2/models/m/versions/99999999999999999999/infer",
        b"/v2/models/m/ready",
        b"/metrics",
    ],
)
def test_other_paths_are_not_bent_until_they_fit(path):
    error = refusal(b"POST", path)
    assert (error.status, error.code) == (404, "unknown_url")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        (b"GET", b"/v1/chat/completions", b"POST"),
        (b"DELETE", b"/v1/models", b"GET, HEAD"),
        (b"DELETE", b"/v1/models/m", b"GET, HEAD"),
        (b"post", b"/v1/embeddings", b"POST"),
        (b"GET", b"/v2/models/m/infer", b"POST"),
    ],
)
def test_another_method_is_told_the_right_one(method, path, allow):
    error = refusal(method, path)
    assert (error.status, error.allow) == (405, allow)


@pytest.mark.parametrize(
    ("path", "model", "version"),
    [
        (b"/v2/models/m/infer", "m", ""),
        (b"/v2/models/m/versions/12/infer", "m", "12"),
        (b"/v2/models/org%2Fname-1.5/infer", "org/name-1.5", ""),
        (b"/v2/models/%6d/infer", "m", ""),
    ],
)
def test_a_path_names_model_and_version(path, model, version):
    assert routes.path_model(routes.find(b"POST", path), path) == (model, version)


@pytest.mark.parametrize(
    "name",
    [
        b"%",
        b"%4",
        b"%zz",
        b"m%",
        b"%00",
        b"%0a",
        b"a%20b",
        b"%2e%2e",
        b"a%2f..%2fb",
        b"a%2f..",
        b"%c3%a9",
        b"%ff",
        b"%25",
        b"a" * 257,
        b"%61" * 257,
    ],
)
def test_a_name_that_is_not_one_is_refused(name):
    path = b"/v2/models/%b/infer" % name
    with pytest.raises(ApiError) as caught:
        routes.path_model(routes.find(b"POST", path), path)
    assert caught.value.status == 400
    assert caught.value.param == "model"


def test_the_longest_name_is_accepted():
    path = b"/v2/models/%b/infer" % (b"%61" * 256)
    assert routes.path_model(routes.find(b"POST", path), path) == ("a" * 256, "")


def test_an_engines_path_is_a_constant_where_the_body_names_the_model():
    route = routes.find(b"POST", b"/rerank")
    assert route.upstream_path("x", "") == b"/v1/rerank"


@pytest.mark.parametrize(
    ("model", "version", "path"),
    [
        ("m", "", b"/v2/models/m/infer"),
        ("m", "2", b"/v2/models/m/versions/2/infer"),
        ("org/name:tag", "", b"/v2/models/org%2Fname%3Atag/infer"),
    ],
)
def test_an_engines_path_holds_the_model_it_knows(model, version, path):
    route = routes.find(b"POST", b"/v2/models/public/infer")
    assert route.upstream_path(model, version) == path


def test_the_models_are_listed():
    route = routes.find(b"GET", b"/v1/models")
    body = json.loads(routes.models_body(route, b"/v1/models", ["a", "org/b"]))
    assert body["object"] == "list"
    assert [model["id"] for model in body["data"]] == ["a", "org/b"]
    assert body["data"][0] == {"id": "a", "object": "model", "created": 0, "owned_by": "holdfast"}


@pytest.mark.parametrize("path", [b"/v1/models/org/b", b"/v1/models/org%2Fb"])
def test_one_model_is_told(path):
    route = routes.find(b"GET", path)
    assert json.loads(routes.models_body(route, path, {"org/b": None}))["id"] == "org/b"


def test_a_model_that_is_not_there_is_not_found():
    route = routes.find(b"GET", b"/v1/models/x")
    with pytest.raises(ApiError) as caught:
        routes.models_body(route, b"/v1/models/x", ["a"])
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("name", "sane"),
    [
        ("gpt-4o", True),
        ("meta-llama/Llama-3.1-8B-Instruct", True),
        ("qwen2.5:0.5b", True),
        ("ft:gpt:org::id", True),
        ("@cf/meta/llama", True),
        ("", False),
        (" m", False),
        ("m\n", False),
        ("m\r\nx: y", False),
        ("../m", False),
        ("a/../b", False),
        ("a/..", False),
        ("a b", False),
        ("é", False),
        ('a"b', False),
        ("a" * 256, True),
        ("a" * 257, False),
    ],
)
def test_names_of_models_are_plain(name, sane):
    assert routes.is_sane_model(name) is sane


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        (b"POST", b"/v1/responses/resp_1", 405),
        (b"GET", b"/v1/responses/resp_1/cancel", 405),
        (b"DELETE", b"/v1/responses/resp_1/input_items", 405),
        (b"GET", b"/v1/responses/", 404),
        (b"GET", b"/v1/responses/resp_1/", 404),
        (b"GET", b"/v1/responses/resp_1/more", 404),
        (b"GET", b"/v1/responses/a%2fb", 404),
        (b"GET", b"/v1/responses/" + b"a" * 1_025, 404),
    ],
)
def test_other_paths_below_a_response_are_not_there(method, path, status):
    assert refusal(method, path).status == status


def test_a_kept_response_is_asked_for_under_its_engines_own_id():
    for more in (b"", b"/cancel", b"/input_items"):
        path = b"/v1/responses/resp_ours" + more
        assert routes.path_response(path) == ("resp_ours", more)
        assert routes.response_path(path, "resp_e/1") == b"/v1/responses/resp_e%2F1" + more


def test_what_an_engine_has_or_lacks_is_named_by_a_path_without_a_model():
    tasks = {route.task for route in routes.ROUTES.values()}
    assert "/v1/embeddings" in tasks
    assert routes.find(b"POST", b"/v2/models/m/versions/3/infer").task == "/v2/models/"
    assert len(tasks) < 16
