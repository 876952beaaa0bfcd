"""Gets bearer tokens from the program that a kubeconfig names, as EKS, GKE and AKS have them do.

The program prints an ``ExecCredential`` of ``client.authentication.k8s.io`` v1 or v1beta1. Its
token is used until shortly before it expires, or until the server refuses it; then the program runs
again, once, however many requests wait for it. A program that fails, hangs or prints no token is
the reason why the source cannot see; what it printed is never repeated: it may be the token.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any, Final

import httpx2

PLUGIN_S: Final = 30.0  # it may wait for a person to sign in; after this long nobody will
EARLY_S: Final = 60.0  # before it expires: clocks differ, and a watch takes long to open
OUTPUT_BYTES_MAX: Final = 1 << 20
VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class PluginError(ValueError):
    """The program gave no token."""


class ExecPluginAuth(httpx2.Auth):
    """Signs requests with the token of a credential program."""

    def __init__(self, plugin: Any, server: str) -> None:
        self._plugin = plugin  # lightkube's UserExec
        self._server = server
        self._token = ""
        self._expires_at: float | None = None  # seconds since 1970; None: not told
        self._lock = asyncio.Lock()

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Add the token; where it is refused, ask for another one and try once more."""
        token = await self._fresh_token(refused="")
        request.headers["Authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code == 401:
            again = await self._fresh_token(refused=token)
            request.headers["Authorization"] = f"Bearer {again}"
            yield request

    async def _fresh_token(self, refused: str) -> str:
        async with self._lock:
            old = self._expires_at is not None and time.time() >= self._expires_at - EARLY_S
            if not self._token or old or self._token == refused:
                self._token, self._expires_at = await self._ask()
            return self._token

    async def _ask(self) -> tuple[str, float | None]:
        plugin = self._plugin
        if plugin.apiVersion not in VERSIONS:
            raise PluginError(f"{plugin.apiVersion} is not known; use {VERSIONS[0]}")
        environment = dict(os.environ) | {one.name: one.value for one in plugin.env or ()}
        asked = {
            "apiVersion": plugin.apiVersion,
            "kind": "ExecCredential",
            "spec": {"interactive": False, "cluster": {"server": self._server}},
        }
        environment["KUBERNETES_EXEC_INFO"] = json.dumps(asked)
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *(plugin.args or ()),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # it may have started others, which end with it
        )
        try:
            async with asyncio.timeout(PLUGIN_S):
                output, _ = await process.communicate()
        except TimeoutError:
            raise PluginError(f"{plugin.command} gave no token within {PLUGIN_S:g} s") from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.communicate()  # until its pipes are closed, too
        if process.returncode:
            raise PluginError(f"{plugin.command} ended with status {process.returncode}")
        return _credential(plugin, output)


def _credential(plugin: Any, output: bytes) -> tuple[str, float | None]:
    """The token that a program printed, and when it expires."""
    try:
        status = json.loads(output[:OUTPUT_BYTES_MAX])["status"]
        token, expires = status.get("token"), status.get("expirationTimestamp")
        expires_at = datetime.fromisoformat(expires).timestamp() if expires else None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise PluginError(f"{plugin.command} printed no credential") from None
    if not isinstance(token, str) or not token:
        told = "a client certificate" if status.get("clientCertificateData") else "nothing of use"
        raise PluginError(f"{plugin.command} printed {told}; a token is needed")
    return token, expires_at


__all__ = ["VERSIONS", "ExecPluginAuth", "PluginError"]
