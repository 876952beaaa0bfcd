import pytest

from holdfast.core.failure import Kind
from holdfast.core.types import State
from holdfast.engines import DIALECTS, dialect
from holdfast.engines.startup_log import (
    FATALS,
    HEAD_CHARACTERS,
    LoadPhase,
    fatal_of,
    nccl_of,
    phase_of,
)

# Starts as they are written, shortened: each line and the phase it tells.
STARTS = {
    "vllm": (
        ("INFO 06-02 11:01:02 [model.py:500] Resolved architecture: LlamaForCausalLM", "starting"),
        ("(EngineCore pid=1) INFO [core.py:90] Initializing a V1 LLM engine (v0.11)", "starting"),
        ("(EngineCore pid=1) INFO [runner.py:1] Starting to load model /weights/m...", "loading"),
        ("Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:00<00:01]", "loading"),
        ("(EngineCore pid=1) INFO [loader.py:384] Loading weights took 24.84 seconds", "loading"),
        ("INFO 06-02 11:03:17 [monitor.py:33] torch.compile takes 45.81 s in total", "compile"),
        ("Capturing CUDA graphs (decode, FULL):  46%|####      | 16/35", "compile"),
        ("INFO [cpu_model_runner.py:60] Warming up model for the compilation...", "warm-up"),
        ("INFO [core.py:167] init engine (profile, create kv cache) took 90.84 s", "warm-up"),
        ("INFO:     Application startup complete.", "serving"),
    ),
    "sglang": (
        ("[2025-12-23 14:18:00] Init torch distributed begin.", "starting"),
        ("[2025-12-23 14:18:01 TP0] Load weight begin. avail mem=46.81 GB", "loading"),
        ("[2025-12-23 14:18:09 TP0] Capture cuda graph begin. This can take minutes.", "compile"),
        ("[2025-12-23 14:18:20] INFO:     Application startup complete.", "warm-up"),
        ("[2025-12-23 14:18:22] The server is fired up and ready to roll!", "serving"),
    ),
    "tgi": (
        (
            "INFO download: text_generation_launcher: Starting check and download process",
            "starting",
        ),
        ("INFO shard-manager: text_generation_launcher: Starting shard rank=0", "loading"),
        ("INFO text_generation_launcher: Waiting for shard to be ready... rank=0", "loading"),
        ("INFO text_generation_router: router/src/main.rs:213: Warming up model", "warm-up"),
        ("INFO text_generation_router: router/src/main.rs:371: Connected", "serving"),
    ),
    "triton": (
        ("I0307 12:34:06.718822 1 model_lifecycle.cc:461] loading: resnet:1", "loading"),
        ("I0307 12:34:11.802379 1 model_lifecycle.cc:818] successfully loaded 'resnet'", "loading"),
        ("I0307 12:34:12.747993 1 http_server.cc:3620] Started HTTPService at 0.0.0.0", "serving"),
    ),
    "llamacpp": (
        ("main: loading model", "loading"),
        ("llama_model_loader: loaded meta data with 37 key-value pairs", "loading"),
        ("common_init_from_params: warming up the model with an empty run", "warm-up"),
        ("main: model loaded", "serving"),
        ("main: server is listening on http://127.0.0.1:8080 - starting the main loop", "serving"),
    ),
    "ollama": (
        ('routes.go:1028: INFO server config env="map[OLLAMA_DEBUG:false]"', "starting"),
        ('source=routes.go:1172 msg="Listening on 127.0.0.1:11434 (version 0.3.6)"', "serving"),
        ('source=server.go:555 msg="waiting for llama runner to start responding"', "loading"),
        ('source=server.go:626 msg="llama runner started in 2.52 seconds"', "serving"),
    ),
    "trtllm": (
        ("[TRT-LLM] [I] Prefetching 4.10GB checkpoint files.", "loading"),
        ("[TRT-LLM] [I] Running autotuner warmup...", "compile"),
        ("[TRT-LLM] [I] Creating CUDA graph instances for 11 batch sizes.", "compile"),
        ("INFO:     Application startup complete.", "serving"),
    ),
}


@pytest.mark.parametrize("name", STARTS)
def test_a_start_is_told_phase_by_phase(name: str) -> None:
    told = [phase_of(dialect(name), line) for line, _ in STARTS[name]]
    assert [phase and phase.name for phase in told] == [phase for _, phase in STARTS[name]]


@pytest.mark.parametrize("name", STARTS)
def test_a_replica_is_asked_from_its_serving_line_on_and_not_before(name: str) -> None:
    for line, expected in STARTS[name]:
        phase = phase_of(dialect(name), line)
        assert phase is not None
        assert (phase.state is State.WARMING) == (expected == "serving")
        assert phase.compiling == (expected in {"compile", "warm-up"})


def test_what_ollama_loads_on_demand_does_not_move_a_replica_that_serves() -> None:
    line = 'msg="waiting for llama runner to start responding"'
    assert phase_of(dialect("ollama"), line) == LoadPhase("loading", None)


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize(
    "line",
    [
        "",
        " ",
        "\x1b[0m",
        "\0",
        "GET /health 200 OK",
        "INFO: 127.0.0.1 - POST /v1/chat 200",
        "x" * 999,
    ],
)
def test_an_ordinary_line_tells_nothing(name: str, line: str) -> None:
    assert phase_of(dialect(name), line) is None
    assert fatal_of(dialect(name), line) is None


def test_an_old_llamacpp_that_listens_before_it_loads_is_not_serving() -> None:
    line = "main: HTTP server is listening, hostname: 127.0.0.1, port: 8080, http threads: 3"
    assert phase_of(dialect("llamacpp"), line) is None


def test_colours_do_not_hide_a_phase() -> None:
    line = "\x1b[32m INFO\x1b[0m \x1b[1mshard\x1b[0m: Shard \x1b[1mready\x1b[0m in 3s"
    phase = phase_of(dialect("tgi"), line)
    assert phase is not None
    assert phase.name == "loading"


FATAL_LINES = [
    (
        "vllm",
        "(EngineCore pid=1) ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to",
        "oom",
    ),
    ("vllm", "ValueError: Free memory on device cuda:0 (3.25/23.43 GiB) on startup is less", "oom"),
    ("vllm", "RuntimeError: Engine core initialization failed. See root cause above.", "exit"),
    (
        "vllm",
        "(EngineCore_0 pid=2) ERROR [core.py:517] EngineCore encountered a fatal error.",
        "exit",
    ),
    ("vllm", "RuntimeError: CUDA error: an illegal memory access was encountered", "exit"),
    (
        "sglang",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "oom",
    ),
    ("sglang", "[2025-03-29 18:56:25 TP0] Scheduler hit an exception: Traceback", "exit"),
    ("tgi", "Error: ShardCannotStart", "exit"),
    ("tgi", "Not enough memory to handle 4096 prefill tokens.", "oom"),
    ("triton", "error: creating server: Internal - failed to load all models", "exit"),
    ("llamacpp", "gguf_init_from_file: failed to open GGUF file 'x' (No such file)", "exit"),
    ("llamacpp", "llama_model_load: error loading model: unknown model architecture: 'x'", "exit"),
    ("llamacpp", "srv    load_model: failed to load model, 'x.gguf'", "exit"),
    ("llamacpp", "ggml_backend_cuda_buffer: cudaMalloc failed: out of memory", "oom"),
    ("llamacpp", "start: couldn't bind HTTP server socket, hostname: 127.0.0.1", "exit"),
    ("ollama", 'msg="timed out waiting for llama runner to start - progress 1.00"', "stall"),
    ("trtllm", "RuntimeError: Executor worker returned error", "exit"),
    ("trtllm", "[E] Executor creation failed due to insufficient GPU memory.", "oom"),
    ("openai", "terminate called after throwing an instance of 'std::bad_alloc'", "oom"),
    ("openai", "OSError: [Errno 98] Address already in use", "exit"),
]
KINDS = {"oom": Kind.OUT_OF_MEMORY, "exit": Kind.EXITED, "stall": Kind.LOAD_STALLED}


@pytest.mark.parametrize(("name", "line", "kind"), FATAL_LINES)
def test_a_fatal_line_is_told_with_its_reason(name: str, line: str, kind: str) -> None:
    fatal = fatal_of(dialect(name), line)
    assert fatal is not None
    assert fatal[0] is KINDS[kind]
    assert fatal[1]
    assert phase_of(dialect(name), line) is None  # "error loading model" is no loading


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("vllm", "INFO Received request chatcmpl-1: prompt: 'why CUDA out of memory?'"),
        ("sglang", "[2025] Receive: obj=GenerateReqInput(text='CUDA out of memory')"),
        ("llamacpp", 'srv log_server_r: request: {"content": "failed to load model"}'),
        ("ollama", 'level=DEBUG msg="chat request" prompt="llama runner started"'),
        ("vllm", 'INFO: 10.0.0.7 - "GET /Application startup complete HTTP/1.1" 404'),
        ("ollama", '[GIN] | 404 | 127.0.0.1 | GET "/CUDA out of memory"'),
    ],
)
def test_what_users_wrote_is_not_taken_for_the_engines_word(name: str, line: str) -> None:
    assert fatal_of(dialect(name), line) is None
    assert phase_of(dialect(name), line) is None


def test_only_the_beginning_of_a_line_is_believed() -> None:
    line = "x" * HEAD_CHARACTERS + " CUDA out of memory, Application startup complete"
    assert fatal_of(dialect("vllm"), line) is None
    assert phase_of(dialect("vllm"), line) is None


@pytest.mark.parametrize("name", DIALECTS)
def test_every_word_can_be_found_and_every_reason_is_there(name: str) -> None:
    known = dialect(name)
    assert all(words and phase.name for words, phase in known.phases)
    assert all(words and why for words, _, why in (*known.fatals, *FATALS))
    assert all(known.quotes)
    # A phase that only a fatal line could tell would never be told.
    assert all(fatal_of(known, words) is None for words, _ in known.phases)


@pytest.mark.parametrize("name", [name for name, one in DIALECTS.items() if one.launches])
def test_every_engine_we_start_tells_when_it_serves(name: str) -> None:
    assert "serving" in {phase.name for _, phase in dialect(name).phases}


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("(Worker pid=9) INFO 06-02 [pynccl.py:70] vLLM is using nccl==2.27.3", "2.27.3"),
        ("host:1:1 [0] NCCL INFO NCCL version 2.21.5+cuda12.4", "2.21.5"),
        ("NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>", ""),
        ("x" * HEAD_CHARACTERS + " nccl==2.27.3", ""),
        ('"POST /v1/chat HTTP/1.1" nccl==9.9.9', ""),
    ],
)
def test_the_version_of_nccl_is_read_from_the_log(line: str, version: str) -> None:
    assert nccl_of(dialect("vllm"), line) == version
