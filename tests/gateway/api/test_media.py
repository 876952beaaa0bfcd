"""Requests that would send an engine into the operator's network, in the words of all APIs."""

import json

import pytest

from holdfast.config.gateway import BodyConfig
from holdfast.core.types import ConfigError
from holdfast.gateway.api import bodies, media, routes
from holdfast.gateway.api.errors import ApiError

METADATA = "http://169.254.169.254/latest/meta-data/iam/"
PUBLIC = "https://example.org/a.png"
CHAT, RESPONSES = b"/v1/chat/completions", b"/v1/responses"
LIMITS = BodyConfig()


def ask(path, body, limits=LIMITS, kind=b"application/json"):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return bodies.parse(routes.find(b"POST", path), kind, path, text, limits)


def refusal(path, body, **more):
    with pytest.raises(ApiError) as caught:
        ask(path, body, **more)
    return caught.value


def chat(*pieces, **more):
    return {"model": "m", "messages": [{"role": "user", "content": list(pieces)}], **more}


def shapes(url):
    """Bodies with this URL where some engine fetches it, and the path of the member."""
    text = {"type": "text", "text": "What is it?"}
    at = "messages[0].content"
    yield CHAT, chat({"type": "image_url", "image_url": {"url": url}}), f"{at}[0].image_url.url"
    yield CHAT, chat(text, {"type": "image_url", "image_url": url}), f"{at}[1].image_url"
    yield CHAT, chat({"image_url": {"detail": "low", "url": url}}), f"{at}[0].image_url.url"
    yield CHAT, chat({"type": "video_url", "video_url": {"url": url}}), f"{at}[0].video_url.url"
    yield CHAT, chat({"type": "audio_url", "audio_url": {"url": url}}), f"{at}[0].audio_url.url"
    yield (
        CHAT,
        chat({"type": "input_audio", "input_audio": {"url": url}}),
        f"{at}[0].input_audio.url",
    )
    yield (
        CHAT,
        chat({"type": "input_audio", "input_audio": {"data": url}}),
        f"{at}[0].input_audio.data",
    )
    yield CHAT, chat({"type": "file", "file": {"file_data": url}}), f"{at}[0].file.file_data"
    yield CHAT, chat({"type": "image", "image": url}), f"{at}[0].image"
    yield CHAT, chat({"type": "video", "video": [PUBLIC, url]}), f"{at}[0].video[1]"
    yield (
        CHAT,
        chat({"type": "image", "image": {"source": {"url": url}}}),
        f"{at}[0].image.source.url",
    )
    yield CHAT, chat({"type": "IMAGE_URL", "Image_URL": {"URL": url}}), f"{at}[0].Image_URL.URL"
    yield CHAT, chat(text, image_data=url), "image_data"
    tool = {"role": "tool", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    turns = [{"role": "user", "content": "Hi"}, tool]
    yield CHAT, {"model": "m", "messages": turns}, "messages[1].content[0].image_url.url"
    deep = {"type": "tool_result", "content": [{"a b": [{"image_url": url}]}]}
    yield CHAT, chat(deep), f"{at}[0].content[0].?[0].image_url"
    item = {"type": "input_image", "image_url": url}
    turn = {"role": "user", "content": [{"type": "input_text", "text": "?"}, item]}
    yield RESPONSES, {"model": "m", "input": [turn]}, "input[0].content[1].image_url"
    yield RESPONSES, {"model": "m", "input": [item]}, "input[0].image_url"
    output = {"type": "function_call_output", "call_id": "c", "output": [item]}
    yield RESPONSES, {"model": "m", "input": [output]}, "input[0].output[0].image_url"
    file = {"role": "user", "content": [{"type": "input_file", "file_url": url}]}
    yield RESPONSES, {"model": "m", "input": [file]}, "input[0].content[0].file_url"
    pictures = chat({"type": "image_url", "image_url": {"url": url}})
    yield b"/v1/embeddings", pictures, f"{at}[0].image_url.url"
    document = {"content": [{"type": "image_url", "image_url": {"url": url}}]}
    rerank = {"model": "m", "query": "q", "documents": ["text", document]}
    yield b"/v1/rerank", rerank, "documents[1].content[0].image_url.url"
    query = {"model": "m", "query": document, "documents": ["text"]}
    yield b"/v1/rerank", query, "query.content[0].image_url.url"
    looks = {"model": "m", "input": [{"type": "image_url", "image_url": {"url": url}}]}
    yield b"/v1/moderations", looks, "input[0].image_url.url"
    yield b"/v1/audio/speech", {"model": "m", "input": "Hi", "ref_audio": url}, "ref_audio"
    voices = {"model": "m", "input": "Hi", "references": [{"audio_path": url}]}
    yield b"/v1/audio/speech", voices, "references[0].audio_path"
    yield b"/v1/images/generations", {"model": "m", "prompt": "A cat", "image": [url]}, "image[0]"


@pytest.mark.parametrize(
    ("path", "body", "place"), [*shapes(METADATA)], ids=lambda one: str(one)[:60]
)
def test_no_member_sends_an_engine_into_the_operators_network(path, body, place):
    error = refusal(path, body)
    assert (error.status, error.code, error.param) == (400, "media_refused", place)
    assert error.message.startswith(f"{place} is not fetched: its host is a metadata address.")
    assert "169" not in error.message


@pytest.mark.parametrize(
    ("path", "body", "place"), [*shapes(PUBLIC)], ids=lambda one: str(one)[:60]
)
def test_public_hosts_and_data_pass_where_private_ones_do_not(path, body, place):
    ask(path, body)
    ask(path, json.dumps(body).replace(PUBLIC, "data:;base64,QUJD").encode())


@pytest.mark.parametrize(
    "spelling", ['content": [', 'content":\n\n\n\n\n\n\t [', 'c\\u006fntent":[']
)
def test_no_spelling_of_the_body_hides_a_picture(spelling):
    url = '{"type":"image_url","\\u0069mage_url":{"u\\u0072l":"http:\\/\\/10.0.0.1\\/"}}'
    text = '{"model":"m","messages":[{"role":"user","' + spelling + url + "]}]}"
    assert refusal(CHAT, text.encode()).code == "media_refused"
    tools = '{"model":"m","tools":[{"type":"function"}],"messages":[{"role":"user","'
    assert refusal(CHAT, (tools + spelling + url + "]}]}").encode()).code == "media_refused"


def test_what_is_only_written_about_is_no_picture():
    about = f'Why does {METADATA} answer, and {{"image_url": [{{"url": "{METADATA}"}}]}}?'
    called = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": about}}]
    schema = {"type": "object", "properties": {"image_url": {"type": "string"}}, "required": ["a"]}
    ask(CHAT, chat({"type": "text", "text": about}))
    turns = [
        {"role": "user", "content": about},
        {"role": "assistant", "content": None, "tool_calls": called},
        {"role": "tool", "tool_call_id": "c", "content": about},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    ask(CHAT, {"model": "m", "messages": turns, "tools": tools, "metadata": {"url": METADATA}})
    ask(RESPONSES, {"model": "m", "input": about})
    ask(b"/v1/embeddings", {"model": "m", "input": [about, "{}"]})


def test_what_cannot_be_read_beside_a_picture_is_refused_with_the_member():
    text = b'{"model":"m","messages":[{"role":"user","content":[{"top":1e999},{"image_url":"x"}]}]}'
    error = refusal(CHAT, text)
    assert (error.status, error.code, error.param) == (400, "invalid_value", "messages")


def test_turns_of_text_are_told_without_a_walk():
    plain = [
        {"role": "system", "content": "Be brief [always]."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]},
        {"type": "function_call_output", "call_id": "c", "output": "[]"},
    ]
    assert media._is_plain("messages", bodies.Raw(json.dumps(plain).encode()))
    for piece in ({"image": 1}, {"type": "text", "Image": 1}):
        turns = [{"role": "user", "content": [piece]}]
        assert not media._is_plain("messages", bodies.Raw(json.dumps(turns).encode()))


def test_a_form_sends_no_engine_anywhere_either():
    form = (
        b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n'
        b'--x\r\ncontent-disposition: form-data; name="url"\r\n\r\n%b\r\n'
        b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nabc\r\n--x--\r\n'
    )
    path, kind = b"/v1/audio/transcriptions", b"multipart/form-data; boundary=x"
    error = refusal(path, form % METADATA.encode(), kind=kind)
    assert (error.code, error.param) == ("media_refused", "url")
    ask(path, form % PUBLIC.encode(), kind=kind)


def test_the_file_narrows_and_opens():
    private = chat({"image_url": {"url": "http://minio:9000/a.png"}})
    public = chat({"image_url": {"url": PUBLIC}})
    opened = BodyConfig(media_hosts=("*", "minio"))
    ask(CHAT, private, limits=opened)
    ask(CHAT, public, limits=opened)
    narrowed = BodyConfig(media_hosts=("minio",))
    ask(CHAT, private, limits=narrowed)
    assert "not listed" in refusal(CHAT, public, limits=narrowed).message
    with pytest.raises(ConfigError, match=r"has 'http://a'; use names") as caught:
        BodyConfig(media_hosts=("http://a",))
    assert caught.value.field == "limits.media_hosts"
