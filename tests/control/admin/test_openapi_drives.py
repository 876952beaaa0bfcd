"""Drives the admin port by its own description: what it promises holds, and nothing else comes."""

import asyncio
import json
import re
from contextlib import AsyncExitStack

import httpx2 as httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.config.tenants import hash_key
from holdfast.control.admin.openapi import openapi_document
from holdfast.control.process import Control
from holdfast.control.view.history import keeping
from holdfast.storage.sqlite import SqliteStore
from holdfast.testing.launcher import FakeLauncher
from holdfast.wire.view_sources import admin_app, build_source

DOCUMENT = openapi_document()
TOKEN = "hf-the-operators-own-token"
ENDLESS = "/view/stream"  # only its refusals end
OPERATIONS = [
    (path, method, operation)
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
]
FILE = f"""
gateway: {{listen: '127.0.0.1:8000'}}
admin: {{token: '{hash_key(TOKEN)}'}}
chaos: {{enabled: true}}
sources: [{{type: agents}}]
models: [{{name: m, engine: vllm, endpoints: ['http://127.0.0.1:9']}}]
"""

plain = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True)
names = st.sampled_from(["m", "m-1", "inc-000001"]) | plain
junk = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
anything = junk | st.lists(junk, max_size=3) | st.dictionaries(plain, junk, max_size=3)


def resolved(schema):
    while "$ref" in schema:
        *_, kind, name = schema["$ref"].split("/")
        schema = DOCUMENT["components"][kind][name]
    return schema


def of_schema(schema):
    """Values that a schema allows, and near them those that it does not."""
    schema = resolved(schema)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type")
    if kind == "integer":
        least, most = schema.get("minimum", 0), schema.get("maximum", 2_000_000_000)
        return st.integers(least, most) | st.sampled_from([least - 1, most + 1])
    if kind == "number":
        return st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 2_000_000_000)
    if kind == "array":
        return st.lists(of_schema(schema.get("items", {})), max_size=3)
    if kind == "object" and "properties" in schema:
        members = {name: of_schema(inner) for name, inner in schema["properties"].items()}
        return st.fixed_dictionaries({}, optional=members)
    return plain


def problems(value, schema, where="$"):
    """What of a value its schema does not allow; the few words of JSON Schema that are used."""
    schema = resolved(schema)
    if "anyOf" in schema:
        tried = [list(problems(value, one, where)) for one in schema["anyOf"]]
        if all(tried):
            yield from tried[0]
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is none of {schema['enum']}"
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        yield f"{where}: {value!r} is no {kinds}"
        return
    if isinstance(value, dict):
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{where}: {name} is missing"
        known = schema.get("properties", {})
        for name, inner in value.items():
            if name in known:
                yield from problems(inner, known[name], f"{where}.{name}")
            elif schema.get("additionalProperties") is False:
                yield f"{where}: {name} is not described"
    if isinstance(value, list) and "items" in schema:
        for index, inner in enumerate(value):
            yield from problems(inner, schema["items"], f"{where}[{index}]")


def _is(value, kind):
    types = {"string": str, "object": dict, "array": list, "boolean": bool, "null": type(None)}
    if kind in types:
        return isinstance(value, types[kind])
    number = int if kind == "integer" else int | float
    return isinstance(value, number) and not isinstance(value, bool)


@st.composite
def requests(draw):
    path, method, operation = draw(st.sampled_from(OPERATIONS))
    query = []
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", draw(names))
        elif parameter.get("required") or draw(st.booleans()):
            given = draw(of_schema(parameter["schema"]) | st.text(max_size=12))
            values = given if isinstance(given, list) else [given]
            query += [(parameter["name"], value) for value in values]
    if path == ENDLESS:
        query = [("only", draw(st.text(max_size=8).filter(lambda text: text != "changes")))]
    more = {}
    if method == "post" and draw(st.booleans()):
        body = anything
        if "requestBody" in operation:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            body = of_schema(schema) | anything
        raw = st.binary(max_size=40) | body.map(lambda value: json.dumps(value).encode())
        more["content"] = draw(raw)
        kind = draw(st.sampled_from(["application/json", "application/json", "text/plain"]))
        more["headers"] = {"content-type": kind}
    return operation, method, path, query, more


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """A control that runs, and a client of its admin port; both in one event loop."""
    folder = tmp_path_factory.mktemp("admin")
    (folder / "fleet.yaml").write_text(FILE)
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        client = runner.run(_opened(stack, folder))
        yield runner, client
        runner.run(stack.aclose())


async def _opened(stack, folder):
    store = SqliteStore(folder / "state.db")
    stack.callback(store.close)
    run_dir = folder / "run"
    run_dir.mkdir()
    control = Control(
        folder / "fleet.yaml", run_dir, {}, "control-1", store, FakeLauncher(), build_source
    )
    view, drift = control.view.snapshot, control.incidents.drift_series
    control.sampler = await stack.enter_async_context(
        keeping(folder, view, drift, lambda what, why: None)
    )
    stop = asyncio.Event()
    task = asyncio.create_task(control.run(stop))

    async def ended():
        stop.set()
        await task

    stack.push_async_callback(ended)
    app = httpx.ASGITransport(admin_app(control), raise_app_exceptions=True)
    headers = {"authorization": f"Bearer {TOKEN}"}
    base = "http://127.0.0.1:8001"
    client = httpx.AsyncClient(transport=app, base_url=base, headers=headers)
    return await stack.enter_async_context(client)


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(asked=requests())
def test_every_answer_is_one_that_the_document_describes(port, asked):
    runner, client = port
    operation, method, path, query, more = asked
    answer = runner.run(client.request(method, path, params=query, **more))
    described = operation["responses"].get(str(answer.status_code))
    shown = (method, path, query, more, answer.status_code, answer.text[:200])
    assert described is not None, shown
    content = resolved(described).get("content", {})
    kind = answer.headers.get("content-type", "").partition(";")[0]
    assert kind in content, (shown, kind)
    if kind == "application/json":
        wrong = list(problems(answer.json(), content[kind]["schema"]))
        assert not wrong, (shown, wrong)


def test_wrong_tokens_and_other_hosts_are_answered_as_described(port):
    runner, client = port
    for path, method, operation in OPERATIONS:
        named = re.sub(r"{\w+}", "m-1", path)
        if path == ENDLESS:
            continue
        answer = runner.run(client.request(method, named, headers={"host": "evil.example"}))
        assert str(answer.status_code) in operation["responses"], (path, answer.status_code)
        answer = runner.run(client.request(method, named, headers={"authorization": "Bearer no"}))
        assert str(answer.status_code) in operation["responses"], (path, answer.status_code)
