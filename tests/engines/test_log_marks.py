import pytest

from holdfast.core.diagnose.facts import Mark
from holdfast.engines import DIALECTS, dialect
from holdfast.engines.log_marks import COMMON, HARMLESS, OWN, PEER_CHARACTERS, mark_of
from holdfast.engines.startup_log import HEAD_CHARACTERS

_ROOM = "4793981895866140836"
_NCCL = "WorkNCCL(SeqNum=2, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600059 milliseconds"

# Lines as engines, drivers and kernels write them, shortened.
LINES: dict[Mark, tuple[tuple[str, str], ...]] = {
    Mark.GPU_MEMORY_FULL: (
        ("vllm", "ERROR 05-11 [core.py:390] torch.OutOfMemoryError: CUDA out of memory. Tried to"),
        ("vllm", "ValueError: Free memory on device cuda:0 (3.25/23.43 GiB) on startup is less"),
        ("vllm", "ValueError: No available memory for the cache blocks. Try increasing"),
        (
            "vllm",
            "KV cache is needed, which is larger than the available KV cache memory (2.1 GiB)",
        ),
        ("sglang", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static"),
        ("tgi", "RuntimeError: Not enough memory to handle 4096 prefill tokens."),
        ("tgi", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.82 GiB"),
        ("triton", "E0502 08:14:02 1 logging.cc:43] 1: Error Code 1: Cuda Runtime (out of memory)"),
        ("triton", "Internal: failed: Allocator (GPU_0_bfc) ran out of memory trying to allocate"),
        ("trtllm", "[E] Executor creation failed due to insufficient GPU memory."),
        ("trtllm", "[E] CUDA runtime error in ::cudaMallocAsync(ptr, n, stream): out of memory"),
        ("llamacpp", "allocating 7168.00 MiB on device 0: cudaMalloc failed: out of memory"),
        ("llamacpp", "error loading model: unable to allocate CUDA0 buffer"),
        ("ollama", "ggml_backend_cuda_buffer_type: cudaMalloc failed: out of memory"),
        ("openai", "RuntimeError: HIP out of memory. Tried to allocate 20.00 MiB. GPU 0 has"),
    ),
    Mark.HOST_MEMORY_FULL: (
        ("openai", "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:9132kB"),
        ("openai", "[9012.4] Out of memory: Killed process 812 (llama-server) total-vm:31 kB"),
        ("openai", "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=docker-9f"),
        ("openai", "terminate called after throwing an instance of 'std::bad_alloc'"),
        ("vllm", "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you"),
        ("vllm", "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low"),
        ("tgi", "OSError: [Errno 12] Cannot allocate memory"),
        (
            "llamacpp",
            "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size",
        ),
        ("ollama", 'error="model requires more system memory (5.6 GiB) than is available (3 GiB)"'),
    ),
    Mark.CUDA_CORRUPTED: (
        ("vllm", "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
        ("sglang", "RuntimeError: CUDA error: an illegal instruction was encountered"),
        ("tgi", "RuntimeError: CUDA error: device-side assert triggered"),
        ("triton", "E0307 1 model_lifecycle.cc] CUDA error: unspecified launch failure"),
        ("trtllm", "CUDA error: CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("openai", "Memory access fault by GPU node-1 (Agent handle: 0x55) on address 0x7f"),
    ),
    Mark.GPU_DAMAGED: (
        ("vllm", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
        ("openai", "NVRM: Xid (PCI:0000:09:00): 79, pid=0, GPU has fallen off the bus."),
        ("openai", "NVRM: Xid (PCI:0000:3b:00): 48, An uncorrectable double bit error (DBE)"),
        ("openai", "Unable to determine the device handle for GPU0: GPU is lost.  Reboot"),
    ),
    Mark.DRIVER_MISMATCH: (
        ("vllm", "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)"),
        ("vllm", "RuntimeError: CUDA error: no kernel image is available for execution on the"),
        ("vllm", "RuntimeError: Found no NVIDIA driver on your system. Please check that you"),
        ("sglang", "ImportError: libcuda.so.1: cannot open shared object file: No such file"),
        ("tgi", "Failed to initialize NVML: Driver/library version mismatch"),
        ("triton", "1: [stdArchiveReader.cpp::stdArchiveReader::32] Version tag does not match"),
        (
            "triton",
            "engine plan file is generated on an incompatible device, expecting compute 8.6",
        ),
        ("llamacpp", "CUDA error: the provided PTX was compiled with an unsupported toolchain."),
        ("openai", "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4"),
        (
            "openai",
            (
                "cudaErrorCompatNotSupportedOnDevice: forward compatibility was attempted on "
                "non supported HW"
            ),
        ),
        ("trtllm", "RuntimeError: No GPU devices found"),
    ),
    Mark.CPU_FALLBACK: (
        ("llamacpp", "warning: no usable GPU found, --gpu-layers option will be ignored"),
        (
            "llamacpp",
            "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected",
        ),
        ("llamacpp", "load_tensors: offloaded 0/33 layers to GPU"),
        ("ollama", 'level=INFO source=gpu.go:280 msg="no compatible GPUs were discovered"'),
        ("ollama", 'source=memory.go:309 msg="offload to cpu" layers.requested=-1'),
        (
            "triton",
            (
                "W1 pinned_memory_manager.cc:237] Unable to allocate pinned system memory, pinned "
                "memory pool will not be available: CUDA driver version is insufficient for CUDA"
            ),
        ),
        ("triton", "[W:onnxruntime] Failed to create CUDAExecutionProvider."),
        (
            "vllm",
            ("INFO [__init__.py:250] No platform detected, vLLM is running on UnspecifiedPlatform"),
        ),
    ),
    Mark.MODEL_MISSING: (
        ("vllm", "ValueError: Invalid repository ID or local directory specified: '/weights/x'"),
        ("vllm", "safetensors_rust.SafetensorError: Error while deserializing header"),
        ("vllm", "ValueError: Model architectures ['X'] are not supported for now."),
        ("sglang", "OSError: /weights/x does not appear to have a file named config.json"),
        ("sglang", "OSError: x is not a local folder and is not a valid model identifier listed"),
        ("tgi", "Error: DownloadError"),
        ("tgi", "huggingface_hub.errors.GatedRepoError: 403 Client Error."),
        ("triton", "failed to load 'bert' version 1: Not found: unable to load shared library"),
        ("trtllm", "OSError: Consistency check failed: file should be of size 4976698672 but has"),
        ("llamacpp", "gguf_init_from_file: failed to open GGUF file 'x.gguf' (No such file)"),
        ("llamacpp", "llama_model_load: error loading model: unknown model architecture: 'x'"),
        (
            "llamacpp",
            ("tensor 'blk.3' data is not within the file bounds, model is corrupted or incomplete"),
        ),
        ("ollama", "Error: digest mismatch, file must be downloaded again: want sha256:1, got 2"),
    ),
    Mark.CONFIG_REFUSED: (
        ("vllm", "api_server.py: error: unrecognized arguments: --max-model-length 4096"),
        ("vllm", "pydantic_core.ValidationError: 1 validation error for ModelConfig"),
        (
            "vllm",
            (
                "ValueError: User-specified max_model_len (32768) is greater than the derived "
                "max_model_len (max_position_embeddings=8192)"
            ),
        ),
        ("sglang", "launch_server.py: error: argument --tp-size: invalid int value: 'two'"),
        ("tgi", 'Error: ArgumentValidation("`max_input_tokens` must be < `max_total_tokens`")'),
        ("triton", "E0307 model_repository_manager.cc] failed to read text proto from /m/config"),
        ("llamacpp", 'error while handling argument "--spec-type": unknown speculative decoding'),
    ),
    Mark.DISK_FULL: (
        ("vllm", "OSError: [Errno 28] No space left on device: '/root/.cache/vllm'"),
        ("tgi", "UserWarning: Not enough free disk space to download the file. The expected"),
        (
            "ollama",
            "Error: write /root/.ollama/models/blobs/sha256-1: no space: Disk quota exceeded",
        ),
        ("triton", "filesystem error: cannot create directory: No space left on device"),
    ),
    Mark.PORT_TAKEN: (
        (
            "vllm",
            (
                "[Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address "
                "already in use"
            ),
        ),
        ("sglang", "OSError: [Errno 98] Address already in use"),
        (
            "triton",
            "failed to start HTTP service: Unavailable - Socket '0.0.0.0:8000' already in use",
        ),
        ("llamacpp", "start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080"),
        ("ollama", "Error: listen tcp 127.0.0.1:11434: bind: address already in use"),
        ("trtllm", "RuntimeError: Failed to bind socket to 0.0.0.0:8000"),
    ),
    Mark.COLLECTIVE_TIMEOUT: (
        (
            "vllm",
            (
                f"[rank0]:[E ProcessGroupNCCL.cpp:563] [Rank 0] Watchdog caught collective "
                f"operation timeout: {_NCCL}"
            ),
        ),
        (
            "sglang",
            (
                "[rank5]:[E814 17:27:59 ProcessGroupNCCL.cpp:621] [Rank 5] Some NCCL operations "
                "have failed or timed out."
            ),
        ),
        ("tgi", "[rank3]:[E ProcessGroupNCCL.cpp:1709] [PG 3 Rank 3] Timeout at NCCL work: 203441"),
        (
            "trtllm",
            (
                "ncclRemoteError: A call failed possibly due to a network error. remote process "
                "exited or there was a network error"
            ),
        ),
        (
            "vllm",
            (
                "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting "
                "1800000ms for recv operation to complete"
            ),
        ),
    ),
    Mark.TRANSFER_FAILED: (
        (
            "sglang",
            (
                f"[2025-11-05 16:39:09 TP0] Decode transfer failed for request rank=0 "
                f"with exception KVTransferError(bootstrap_room={_ROOM}): Aborted"
            ),
        ),
        ("sglang", "Prefill bootstrap failed for request rank=2 req.rid='d3fd' "),
        ("vllm", "ERROR [nixl_connector.py:832] Handshake failed for request cmpl-6e8a849f-0"),
        ("vllm", "ERROR [worker.py:767] NIXL transfer failure: handshake_failed | Context: {}"),
        ("trtllm", "[W] Terminating context request 12 due to KV cache transfer timeout"),
        ("openai", "nixlBackendError: NIXL_ERR_BACKEND"),
    ),
    Mark.KV_EXHAUSTED: (
        (
            "vllm",
            (
                "WARNING scheduler.py:1057] Sequence group 0 is preempted by "
                "PreemptionMode.RECOMPUTE mode because there is not enough KV cache space."
            ),
        ),
        (
            "sglang",
            "[2026-09-13 16:06:07] KV cache pool is full. Retract requests. #retracted_reqs: 1",
        ),
        ("sglang", "RuntimeError: Prefill out of memory. Try to lower your batch size."),
        (
            "llamacpp",
            "W srv update_slots: failed to find free space in the KV cache, retrying with",
        ),
        ("llamacpp", "decode: failed to find a memory slot for batch of size 36"),
        ("ollama", "panic: failed to decode batch: could not find a kv cache slot (length: 6656)"),
        ("trtllm", "[E] Can't allocate new blocks. No free blocks left."),
    ),
    Mark.ALLOCATION_FAILED: (
        (
            "vllm",
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`",
        ),
        (
            "triton",
            "bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 8388608",
        ),
    ),
    Mark.NOT_FINITE: (
        ("sglang", "[2024-11-08 04:44:04 TP1] Detected errors during sampling! NaN in the logits."),
        ("tgi", "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"),
        ("llamacpp", "ggml_validate_row_data: found nan value at block 12"),
    ),
    Mark.ENGINE_DEAD: (
        ("vllm", "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."),
        ("vllm", "ERROR [core_client.py:600] Engine core proc EngineCore_DP0 died unexpectedly"),
        ("sglang", "[2025-03-29 18:56:25 TP0] Scheduler hit an exception: Traceback"),
        ("sglang", "[2025-03-09 00:57:20] Received sigquit from a child proces. It usually means"),
        ("tgi", "Error: ShardFailed"),
        (
            "triton",
            "Failed to process the request(s), message: Stub process 'REGIS_0' is not healthy.",
        ),
        ("trtllm", "RuntimeError: Executor worker returned error"),
        ("llamacpp", "/src/ggml.c:3217: GGML_ASSERT(ctx->mem_buffer != NULL) failed"),
        ("ollama", 'msg="llama runner process has terminated: exit status 2"'),
        (
            "openai",
            (
                "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this "
                "task."
            ),
        ),
    ),
    Mark.WATCHDOG: (
        ("sglang", "[2025-03-09 00:57:15 TP4] Watchdog timeout (self.watchdog_timeout=300)"),
        ("vllm", "ERROR 09-06 [core.py:640] TimeoutError: RPC call to execute_model timed out."),
        ("trtllm", "[E] Hang detected on rank 0 in PyExecutor."),
        ("ollama", 'msg="timed out waiting for llama runner to start - progress 1.00"'),
    ),
}


@pytest.mark.parametrize("mark", Mark)
def test_every_meaning_is_known_from_lines_of_several_engines(mark: Mark) -> None:
    for name, line in LINES[mark]:
        assert mark_of(dialect(name), line) == (mark, ""), line
    assert len({name for name, _ in LINES[mark]}) >= 2


HARMLESS_LINES = (
    "",
    " ",
    "\x1b[0m",
    "x" * 999,
    'INFO:     127.0.0.1:52110 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error',
    '10.0.0.7 - "GET /?q=CUDA%20out of memory. Tried to allocate HTTP/1.1" 200',
    '[GIN] 2025/05/26 | 500 | 2.1s | 127.0.0.1 | POST "/api/No space left on device"',
    "INFO Received request cmpl-1: prompt: 'torch.OutOfMemoryError: CUDA out of memory'",
    '{"messages": [{"role": "user", "content": "an illegal memory access was encountered"}]}',
    "DEBUG body={'prompt': 'why is the address already in use?'}",
    "1 error [type=value_error, input_value='device-side assert triggered']",
    "WARNING [shm_broadcast.py:396] No available shared memory broadcast block found in 60 seconds",
    "[2025] Health check failed. Server couldn't get a response from detokenizer for last 20 s",
    "INFO Avg prompt throughput: 0.0 tokens/s, Running: 1 reqs, GPU KV cache usage: 99.9%",
    "warning: failed to mlock 4096-byte buffer: Cannot allocate memory",
    "INFO Port 8000 is already in use, trying port 8001",
    "W0307 falling back to non-pinned system memory: Cannot allocate memory",
    "INFO Aborted request cmpl-93706305.",
    "server_args=ServerArgs(watchdog_timeout=300, mem_fraction_static=0.88)",
    "[rank0]:[W CUDAGraph.cpp:145] Warning: Waiting for pending NCCL work to finish",
    "UserWarning: expandable_segments not supported on this platform",
    "WARNING Your GPU does not have native support for FP8 computation",
    "INFO Free memory: 12 GiB, out of 80 GiB",
)


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("line", HARMLESS_LINES)
def test_ordinary_lines_and_what_users_wrote_mean_nothing(name: str, line: str) -> None:
    assert mark_of(dialect(name), line) is None


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("sglang", "[2025] Receive: obj=GenerateReqInput(text='Watchdog timeout (self')"),
        ("llamacpp", 'srv log_server_r: request: {"content": "no usable GPU found"}'),
        ("ollama", 'level=DEBUG msg="chat request" prompt="no compatible GPUs were discovered"'),
        ("vllm", "INFO [logger.py:43] Received request chatcmpl-9: prompt: 'EngineDeadError'"),
    ],
)
def test_an_engine_that_logs_prompts_is_not_believed_there(name: str, line: str) -> None:
    assert mark_of(dialect(name), line) is None


def test_only_the_beginning_of_a_line_is_believed() -> None:
    line = "x" * HEAD_CHARACTERS + " torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"
    assert mark_of(dialect("vllm"), line) is None


def test_what_stands_before_a_quoted_value_is_still_believed() -> None:
    line = "ValidationError: 1 validation error for ModelConfig [input_value='EngineDeadError']"
    assert mark_of(dialect("vllm"), line) == (Mark.CONFIG_REFUSED, "")


def test_colours_do_not_hide_a_meaning() -> None:
    line = "\x1b[31mERROR\x1b[0m \x1b[1mtorch\x1b[0m.OutOfMemoryError: CUDA out of memory."
    assert mark_of(dialect("tgi"), line) == (Mark.GPU_MEMORY_FULL, "")


@pytest.mark.parametrize(
    ("line", "peer"),
    [
        (
            "Losing connection with prefill instance (bootstrap_addr: 10.0.3.17:8998), 12 requests",
            "10.0.3.17:8998",
        ),
        (
            (
                f"[2026-02-19 16:32:42 TP7] Decode transfer failed for request rank=7 "
                f"decode_req.req.rid='78fde411d57a4d7791b63963eac74968' bootstrap_room={_ROOM} "
                f"with exception KVTransferError(bootstrap_room={_ROOM}): Could not fetch prefill "
                f"parallel info from bootstrap_addr: 10.99.91.41:8998"
            ),
            "10.99.91.41:8998",
        ),
        (
            (
                "[2025-08-29 11:56:51 TP0] Error fetching prefill parallel info from bootstrap: "
                "HTTPConnectionPool(host='glm-prefill', port=30089): Max retries exceeded"
            ),
            "glm-prefill:30089",
        ),
        (f"KVTransferError({'x' * PEER_CHARACTERS} bootstrap_addr: 10.0.3.17:8998", ""),
    ],
)
def test_a_failed_transfer_names_the_other_side(line: str, peer: str) -> None:
    assert mark_of(dialect("sglang"), line) == (Mark.TRANSFER_FAILED, peer)


def test_a_triton_without_any_driver_is_not_called_mismatched() -> None:
    line = "CUDA driver version is insufficient for CUDA runtime version"
    assert mark_of(dialect("triton"), line) == (Mark.DRIVER_MISMATCH, "")
    line = f"Unable to allocate, pinned memory pool will not be available: {line}"
    assert mark_of(dialect("triton"), line) == (Mark.CPU_FALLBACK, "")


def test_tables_name_known_engines_and_hide_none_of_their_words() -> None:
    assert set(OWN) <= set(DIALECTS)
    for name in DIALECTS:
        table = (*OWN.get(name, ()), *COMMON)
        for place, (words, mark) in enumerate(table):
            assert len(words) >= 9, words
            hiding = [other for earlier, other in table[:place] if earlier in words]
            assert all(other is mark for other in hiding), words
    assert all(HARMLESS)
