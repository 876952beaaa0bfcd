"""A client of one Kubernetes API server: credentials, single answers, and streams of lines.

lightkube finds the server and authenticates: in a pod, by a kubeconfig, by certificates; it reads a
rotated token again after a 401. Several files are made one by us, and programs that print tokens
are run by us: it knows no v1 of theirs. It is half the size of the official client, which moreover
cannot be installed beside boto3. Lists and watches are our own, on
the HTTP client that lightkube makes, because its watch (1.0.1) cannot be asked for bookmarks; waits
for ever on a connection that was cut unseen; begins again at once, without end, when a server
closes each watch; and after a 410 goes on without a list, so that what was deleted meanwhile
stays. Objects are read as plain JSON: of a pod's hundreds of fields thirty are wanted.
"""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson
import yaml

from holdfast import __version__
from holdfast.core.types import ConfigError
from holdfast.ports import UnreadableError
from holdfast.sources.kubernetes.config import KubernetesConfig
from holdfast.sources.kubernetes.kubeconfig_files import kubeconfig_paths, merged_kubeconfig

ANSWER_BYTES_MAX: Final = 64 << 20  # a page of 250 pods has 3 MB
LINE_BYTES_MAX: Final = 4 << 20  # an object may have 1.5 MB at most
TEXT_MAX: Final = 200  # of a reason, for people
RENEW_S: Final = 30.0  # between two readings of the credentials
_POD_TOKEN: Final = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 a path

_DONE: Final = (200, 201, 202)  # 202: a deletion that takes its time

Json = dict[str, Any]


class KubernetesApiError(UnreadableError):
    """The API server could not be reached, or refused the request."""


class StreamQuietError(KubernetesApiError):
    """A stream sent nothing for so long that its connection may be gone."""


class KubernetesApi:
    """A client of one API server; opens no connection before the first request."""

    def __init__(self, config: KubernetesConfig) -> None:
        try:
            import httpx2  # noqa: PLC0415 an extra: only who watches Kubernetes has it
            from lightkube.core.exceptions import ConfigError as Unusable  # noqa: PLC0415
        except ImportError as error:
            fix = "pip install 'holdfast[kubernetes]'"
            raise ConfigError("sources", "of type kubernetes need lightkube", fix) from error
        self._http = httpx2
        wrong = (KeyError, TypeError, ValueError, AssertionError, msgspec.MsgspecError)
        self._unusable = (Unusable, *wrong)
        self._config = config
        self._client: httpx2.AsyncClient | None = None
        self._made_at = 0.0
        self.calls = 0

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        """GET a path and return its JSON."""
        data = await self.text(path, params)
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise KubernetesApiError("its answer is not JSON") from error

    async def text(self, path: str, params: Mapping[str, str] | None = None) -> bytes:
        """GET a path and return its text; a full URL asks another server."""
        limit_s = self._config.timeout_s
        try:
            async with asyncio.timeout(limit_s), self._open(path, params, limit_s) as response:
                data = bytearray()
                async for piece in response.aiter_bytes():
                    data += piece
                    if len(data) > ANSWER_BYTES_MAX:
                        raise KubernetesApiError(
                            f"its answer is larger than {ANSWER_BYTES_MAX} bytes"
                        )
                return bytes(data)
        except TimeoutError as error:
            raise KubernetesApiError(f"no answer within {limit_s:g} s") from error

    async def send(
        self, method: str, path: str, body: Json, kind: str = "application/json"
    ) -> Json:
        """POST, PUT, PATCH or DELETE an object and return what the server made of it.

        ``kind`` is the content type: a PATCH says by it how its body is merged.
        """
        limit_s = self._config.timeout_s
        try:
            async with (
                asyncio.timeout(limit_s),
                self._open(path, None, limit_s, method, body, kind) as response,
            ):
                answer = orjson.loads(await response.aread())
        except TimeoutError as error:
            raise KubernetesApiError(f"no answer within {limit_s:g} s") from error
        except orjson.JSONDecodeError as error:
            raise KubernetesApiError("its answer is not JSON") from error
        if not isinstance(answer, dict):
            raise KubernetesApiError("its answer is no object")
        return answer

    @asynccontextmanager
    async def lines(
        self, path: str, params: Mapping[str, str], quiet_s: float | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield lines of a stream; raises StreamQuietError if none came for too long.

        That is ``silence_s`` of the config, unless ``quiet_s`` says that more is normal.
        """
        async with (
            self._open(path, params, quiet_s or self._config.silence_s) as response,
            aclosing(_split(response.aiter_bytes())) as lines,
        ):
            yield lines

    @asynccontextmanager
    async def _open(
        self,
        path: str,
        params: Mapping[str, str] | None,
        read_s: float,
        method: str = "GET",
        body: Json | None = None,
        kind: str = "",
    ) -> AsyncIterator[Any]:
        http = self._http
        self.calls += 1
        limits = http.Timeout(self._config.timeout_s, read=read_s)
        try:
            client = self._ready_client()
            sent: dict[str, Any] = {}
            if body is not None:
                sent = {"content": orjson.dumps(body), "headers": {"Content-Type": kind}}
            async with client.stream(
                method, path, params=params, timeout=limits, **sent
            ) as response:
                if response.status_code not in _DONE:
                    raise await self._refused(response)
                yield response
        except http.ReadTimeout as error:
            raise StreamQuietError(f"nothing came for {read_s:g} s") from error
        except (http.HTTPError, http.StreamError, http.InvalidURL) as error:
            raise KubernetesApiError(_told(error)) from error
        except (OSError, RuntimeError) as error:  # RuntimeError: closed while it was asked
            raise KubernetesApiError(_told(error)) from error
        except self._unusable as error:  # a file that is missing, a plugin that prints no token
            raise KubernetesApiError(f"its credentials cannot be used: {_told(error)}") from error
        except yaml.YAMLError as error:  # not quoted: it repeats the line, which may hold a token
            raise KubernetesApiError(
                "its credentials cannot be used: the kubeconfig is no YAML"
            ) from error

    async def _refused(self, response: Any) -> KubernetesApiError:
        """What it said; the credentials are read anew where they were not accepted."""
        await response.aread()
        said = ""
        try:
            status = orjson.loads(response.content[:65_536])
            said = str(status.get("message") or "") if isinstance(status, dict) else ""
        except orjson.JSONDecodeError:
            said = ""  # a proxy's page: its status says enough
        code = response.status_code
        if code == 401:
            await self._renew()
        text = f"{code} {response.reason_phrase}"
        return KubernetesApiError(f"{text}: {said}"[:TEXT_MAX] if said else text, code)

    # --- who we are ------------------------------------------------------------------------------

    def _ready_client(self) -> Any:
        if self._client is None:
            self._client = self._connect()
            self._made_at = time.monotonic()
        return self._client

    def _connect(self) -> Any:
        from lightkube.config import client_adapter, kubeconfig, models  # noqa: PLC0415

        told = self._config
        if told.api_url:
            authority = told.ca_file or None
            server = models.Cluster(server=told.api_url, certificate_auth=authority)
            shown = models.User(token_file=told.token_file or None)
            known = kubeconfig.KubeConfig.from_one(cluster=server, user=shown)
        elif told.kubeconfig or told.context or not _in_a_pod():
            # Contexts are in files; a pod's own account has none.
            known = kubeconfig.KubeConfig.from_dict(
                merged_kubeconfig(kubeconfig_paths(told.kubeconfig))
            )
        else:
            known = kubeconfig.KubeConfig.from_service_account()
        chosen = known.get(told.context or None)
        assert chosen is not None, "lightkube raises where there is none"
        user = chosen.user or models.User()
        plugin = user.exec
        chosen = chosen._replace(user=msgspec.structs.replace(user, exec=None))
        timeout = self._http.Timeout(told.timeout_s)
        made = client_adapter.AsyncClient(chosen, client_adapter.ConnectionParams(timeout=timeout))
        made.headers["User-Agent"] = f"holdfast/{__version__}"
        if plugin is not None:
            from holdfast.sources.kubernetes.exec_plugin import ExecPluginAuth  # noqa: PLC0415

            made.auth = ExecPluginAuth(plugin, chosen.cluster.server)
        return made

    async def _renew(self) -> None:
        if time.monotonic() - self._made_at >= RENEW_S:
            await self.close()

    async def close(self) -> None:
        """Close all connections; a later request opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


async def _split(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Lines of a stream; one without an end is refused, not kept."""
    rest = b""
    async with aclosing(pieces):
        async for piece in pieces:
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                if line.strip():
                    yield line
            if len(rest) > LINE_BYTES_MAX:
                raise KubernetesApiError(f"it sent a line of more than {LINE_BYTES_MAX} bytes")
    if rest.strip():
        yield rest


def _in_a_pod() -> bool:
    """Whether this process has the account of a pod that it runs in."""
    return "KUBERNETES_SERVICE_HOST" in os.environ and Path(_POD_TOKEN).is_file()


def _told(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return (text or type(error).__name__)[:TEXT_MAX]


__all__ = ["Json", "KubernetesApi", "KubernetesApiError", "StreamQuietError"]
