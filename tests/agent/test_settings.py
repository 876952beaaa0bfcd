import msgspec
import pytest

from holdfast.agent.settings import (
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    AgentConfig,
    LogRule,
    ReplicaRule,
    check_url,
    default_name,
    read_logs,
    read_replicas,
    read_token,
)
from holdfast.core.types import ConfigError

URL = "https://control.example.org:8001"


@pytest.mark.parametrize(
    "url",
    [URL, "https://10.0.0.7", "http://127.0.0.1:8001", "http://localhost:1", "http://[::1]:8001/x"],
)
def test_https_anywhere_and_http_to_this_host_are_taken(url):
    check_url(url)


@pytest.mark.parametrize("url", ["http://control:8001", "http://10.0.0.7", "http://127.evil.org"])
def test_plain_http_over_a_network_is_refused_and_says_what_to_do(url):
    with pytest.raises(ConfigError, match=r"plain http.*use https"):
        check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        *("", "control:8001", "ftp://control", "https://", "https://c:0", "https://c:99999"),
        *("https://me:secret@control", "https://c/?token=1", "https://c/#x", "https://c\n.org"),
    ],
)
def test_what_is_no_address_of_a_control_is_refused(url):
    with pytest.raises(ConfigError, match="--url"):
        check_url(url)


def test_replicas_are_named_with_how_to_find_them():
    told = ["a=qwen:7b:port=8000", "b=org/m:pid=4711", "c=m:pidfile=/run/c.pid"]
    assert read_replicas(told, ["vllm", "b=sglang"]) == (
        ReplicaRule("a", "qwen:7b", "port", "8000", "vllm"),
        ReplicaRule("b", "org/m", "pid", "4711", "sglang"),
        ReplicaRule("c", "m", "pidfile", "/run/c.pid", "vllm"),
    )
    assert read_replicas(["a=m:port=1"])[0].engine == "openai"


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "a=m", "a=m:8000", "=m:port=1", "a=:port=1", "a=m:port=0", "a=m:port=70000"),
        *("a=m:pid=x", "a=m:pid=0", "a=m:pidfile=relative.pid", "a=m:port=²"),
    ],
)
def test_a_replica_that_cannot_be_found_is_refused(text):
    with pytest.raises(ConfigError, match=r"--replica.*write ID=MODEL"):
        read_replicas([text])


@pytest.mark.parametrize("text", ["VLLM!", "b=vllm", "nonsense"])
def test_an_engine_that_nobody_speaks_of_is_refused(text):
    with pytest.raises(ConfigError):
        read_replicas(["a=m:port=1"], [text])


def test_logs_are_patterns_of_one_replica_or_of_any():
    told = read_logs(["/var/log/{replica}.log", "a=/x=y.log"])
    assert told == (LogRule("/var/log/{replica}.log"), LogRule("/x=y.log", "a"))
    with pytest.raises(ConfigError, match="--log"):
        read_logs(["relative.log"])


def test_a_whole_config_is_checked_and_survives_the_way_to_its_process():
    rules = read_replicas(["a=m:port=1"])
    config = AgentConfig(URL, "gpu-1", replicas=rules, logs=read_logs(["a=/x"]))
    assert msgspec.json.decode(msgspec.json.encode(config), type=AgentConfig) == config
    for wrong in (
        {"name": "a/b"},
        {"name": ""},
        {"replicas": rules * 2},
        {"logs": (LogRule("/x", "nobody"),)},
        {"url": "http://far"},
    ):
        with pytest.raises(ConfigError):
            AgentConfig(**{"url": URL, "name": "n", "replicas": rules, **wrong})


def test_the_token_comes_from_a_variable_or_a_file(tmp_path):
    file = tmp_path / "token"
    file.write_text("from-a-file\n")
    assert read_token({TOKEN_VARIABLE: "secret"}) == "secret"
    assert read_token({TOKEN_FILE_VARIABLE: str(file)}) == "from-a-file"
    assert read_token({TOKEN_VARIABLE: "first", TOKEN_FILE_VARIABLE: str(file)}) == "first"


def test_a_token_that_is_none_is_refused_without_repeating_it(tmp_path):
    with pytest.raises(ConfigError, match=TOKEN_FILE_VARIABLE):
        read_token({})
    with pytest.raises(ConfigError, match="cannot be read"):
        read_token({TOKEN_FILE_VARIABLE: str(tmp_path / "no")})
    for wrong in ("two words", "line\r\nX-Evil: 1", "é", "x" * 600):
        with pytest.raises(ConfigError) as refused:
            read_token({TOKEN_VARIABLE: wrong})
        assert wrong not in str(refused.value)


def test_a_host_has_a_name():
    AgentConfig(URL, default_name())
