import pytest

from holdfast.launchers.environment import engine_environment


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PATH", "/bin"),
        ("HOME", "/home/a@b"),
        ("LANG", "de_DE@euro"),
        ("LC_TIME", "ca_ES@valencia"),
        ("CUDA_HOME", "/cuda"),
        ("NVIDIA_VISIBLE_DEVICES", "all"),
        ("NCCL_DEBUG", "INFO"),
        ("OMP_NUM_THREADS", "4"),
        ("HF_ENDPOINT", "https://mirror.example/a@b"),
        ("VLLM_LOGGING_LEVEL", "DEBUG"),
        ("HTTPS_PROXY", "http://proxy.example:3128"),
        ("no_proxy", "localhost"),
    ],
)
def test_an_engine_gets_what_it_needs(name, value):
    assert engine_environment({name: value}, ()) == {name: value}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_SESSION_TOKEN", "x"),
        ("HOLDFAST_ADMIN_TOKEN", "x"),
        ("ANYTHING", "x"),
        ("HF_TOKEN", "x"),
        ("VLLM_API_KEY", "x"),
        ("NVIDIA_API_KEY", "x"),
        ("HF_ENDPOINT", "https://user:password@mirror.example"),
        ("HTTP_PROXY", "user:password@proxy.example:3128"),
        ("all_proxy", "socks5://user:password@proxy.example"),
    ],
)
def test_everything_else_is_withheld_unless_the_file_names_it(name, value):
    assert engine_environment({name: value}, ()) == {}
    assert engine_environment({name: value}, (name,)) == {name: value}
