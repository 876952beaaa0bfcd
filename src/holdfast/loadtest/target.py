"""Finds out whom a benchmark loads: the server, its model, and what it makes of our requests.

Every wrong answer becomes a ``TargetError`` whose text a person can act on. Nothing of a key is in
it.
"""

import ssl
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

import msgspec

from holdfast.control.fetch import FetchError, fetch
from holdfast.core.near_names import did_you_mean
from holdfast.core.types import ConfigError
from holdfast.gateway.http.upstream import Endpoint
from holdfast.loadtest.load_run import LoadClient
from holdfast.loadtest.measured_call import MeasuredCall, error_code
from holdfast.loadtest.prompts import PromptWriter, TokenRule
from holdfast.loadtest.records import BenchOutcome
from holdfast.loadtest.request_plan import BodyForm

_DEADLINE_S: Final = 10.0
_NAMES_SHOWN: Final = 20
_SHORT_WORDS, _LONG_WORDS = 16, 112  # of the two probes that tell tokens per word
_PROBE_TOKENS: Final = 4
_TEXT_MAX: Final = 200


class TargetError(Exception):
    """The server cannot be benchmarked; the text says why and what to do."""


@dataclass(slots=True, frozen=True)
class BenchTarget:
    """A server that can be loaded: its base URL, model, key and trusted authorities."""

    url: str
    model: str
    key: str | None = None
    tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"BenchTarget({self.url!r}, {self.model!r})"  # the key stays out of logs


@dataclass(slots=True, frozen=True)
class ProbeResult:
    """What the probes told: how tokens are counted, and which form of bodies the server takes."""

    rule: TokenRule
    form: BodyForm
    remarks: tuple[str, ...] = ()


def base_url(text: str) -> str:
    """The base of a server's URL, checked; a trailing ``/v1`` belongs to the paths."""
    text = text.rstrip("/").removesuffix("/v1")
    try:
        return Endpoint(text).url
    except ConfigError as error:
        raise TargetError(f"the URL {error.problem}: {error.fix}") from error


async def find_target(
    url: str, model: str | None, key: str | None, tls: ssl.SSLContext | None
) -> BenchTarget:
    """Ask the server which models it has; the only one is taken where none is named."""
    base = base_url(url)
    shown = base
    try:
        answer = await fetch(base, "/v1/models", _DEADLINE_S, bearer=key, tls=tls)
    except FetchError as error:
        raise TargetError(f"{shown}: {error}; does a gateway or an engine listen there?") from error
    if answer.status in {401, 403}:
        wanted = "its key is not accepted" if key else "it needs a key"
        raise TargetError(
            f"{shown}: {wanted} ({answer.status}); use --key-file or the variable of --key-env"
        )
    names = _names(answer.body) if answer.status == 200 else None
    if names is None:
        raise TargetError(
            f"{shown} is no gateway and no engine with the OpenAI API: /v1/models answers "
            f"{answer.status}"
            + (" with something else" if answer.status == 200 else "")
            + "; give its base URL, such as http://127.0.0.1:8000"
        )
    if model is None:
        if len(names) != 1:
            told = ", ".join(names[:_NAMES_SHOWN]) or "none"
            raise TargetError(f"{shown} has {len(names)} models ({told}); name one with --model")
        model = names[0]
    elif model not in names and names:
        told = did_you_mean(model, names) or f"it has {', '.join(names[:_NAMES_SHOWN])}"
        raise TargetError(f"{shown} has no model {model!r}; {told}")
    if not names:
        raise TargetError(f"{shown} serves no model: a fleet of zero cannot be measured")
    return BenchTarget(base, model, key, tls)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def _names(body: bytes) -> list[str] | None:
    try:
        return [model.id for model in msgspec.json.decode(body, type=_Models).data]
    except msgspec.DecodeError:
        return None


async def probe(client: LoadClient, form: BodyForm, timeout_s: float) -> ProbeResult:
    """Send two short requests: does the model answer, and how many tokens is a word."""
    remarks: list[str] = []
    writer = PromptWriter(0)
    call = await _ask(client, form, writer, _SHORT_WORDS, timeout_s)
    if call.status in {400, 422} and form.ignore_eos:
        form = replace(form, ignore_eos=False)
        call = await _ask(client, form, writer, _SHORT_WORDS, timeout_s)
        if call.status == 200:
            remarks.append("The server does not take ignore_eos: answers may be shorter than asked")
    short = _answered(call)
    long = _answered(await _ask(client, form, writer, _LONG_WORDS, timeout_s))
    if short is None or long is None:
        remarks.append(
            "The server tells no usage: prompts have as many words as tokens were asked for, and "
            "events stand for tokens of answers"
        )
        return ProbeResult(TokenRule(), form, tuple(remarks))
    rule = TokenRule.of_probes((_SHORT_WORDS, short), (_LONG_WORDS, long))
    return ProbeResult(rule, form, tuple(remarks))


async def _ask(
    client: LoadClient, form: BodyForm, writer: PromptWriter, words: int, timeout_s: float
) -> MeasuredCall:
    body = form.body(writer.write(words), _PROBE_TOKENS)
    return await client.probe(form.path, body, timeout_s)


def _answered(call: MeasuredCall) -> int | None:
    """How many prompt tokens an answered probe had; raises ``TargetError`` for any other."""
    record = call.record(0, 0.0)
    if record.outcome is BenchOutcome.SUCCESS:
        return record.prompt_tokens
    status = record.status
    if status is None or status == 200:
        raise TargetError(f"a first request failed: {record.problem.replace('_', ' ')}")
    said = _said(call.refusal_body)
    code = error_code(call.refusal_body)
    told = f"a first request was answered {status}" + (f" ({code})" if code else "")
    told += f": {said}" if said else ""
    if status in {401, 403}:
        raise TargetError(f"{told}; use --key-file or the variable of --key-env")
    if status == 503:
        raise TargetError(f"{told}; is a replica of this model ready?")
    raise TargetError(told)


def _said(body: bytes) -> str:
    """The message of an error, for the person at the terminal: printable, and cut."""
    try:
        told = msgspec.json.decode(body)
        message = told["error"]["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""
    text = "".join(c if c.isprintable() else " " for c in str(message))
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"


def is_url(text: str) -> bool:
    """Whether an argument is meant as a URL; anything else names a model."""
    return "://" in text or text.startswith(("localhost:", "127.0.0.1:"))


def is_loopback(url: str) -> bool:
    """Whether a URL is on this machine."""
    return (urlsplit(url).hostname or "") in {"127.0.0.1", "::1", "localhost"}


__all__ = [
    "BenchTarget",
    "ProbeResult",
    "TargetError",
    "base_url",
    "find_target",
    "is_loopback",
    "is_url",
    "probe",
]
