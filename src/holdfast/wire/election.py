"""Carries out who leads among several controls: claims the lease, follows the leader, stands by.

    stand_by   claims the lease again and again; meanwhile keeps the leader's config and view on
               disk, as a gateway hears them, so that this control begins with what that one knew
    keep       renews the lease; returns when this control leads no more
    leave      gives the lease back, so that the next one need not wait for its end

A control that leads no more ends its process. Its successor in the same place begins as a standby:
nothing of what it had under way can act.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import Final

import structlog

from holdfast.config.addresses import parse_listen
from holdfast.config.certificates import PortCertificate, calling_context
from holdfast.config.processes.control import ControlSection, ControlTlsSection
from holdfast.control.gateways.hub import HubPort
from holdfast.control.gateways.peer_checks import CertificateCheck, SecretCheck
from holdfast.control.gateways.state_file import STATE_FILE, write_state
from holdfast.control.process import LeadingControl
from holdfast.core.health.leadership import Leadership, LeadershipRole
from holdfast.core.types import ConfigError
from holdfast.frames import ConfigFrame, Frame, Hello, ViewFrame
from holdfast.frames.authentication import LinkSecret
from holdfast.frames.control_links import ControlAddress, ControlLinks, GatewayMember
from holdfast.ports import LeadershipStore, LeadershipStoreError

_LOOK_S: Final = 0.1
_RELEASE_S: Final = 2.0  # to give the lease back at the end; else it runs out by itself

_log = structlog.get_logger("holdfast.control.election")


def gateway_member(section: ControlSection, name: str) -> GatewayMember:
    """Where a gateway on this machine stands: beside its own control, and how it reaches others."""
    if not section.members:
        return GatewayMember()
    section.own(name)
    return GatewayMember(name, _others(section, name))


def leadership_store(section: ControlSection) -> LeadershipStore:
    """The store that the file names for the leadership."""
    lease = section.lease
    assert lease is not None, "the file was checked"
    if lease.store == "sqlite":
        from holdfast.storage.leadership.sqlite import SqliteLeadership  # noqa: PLC0415

        assert lease.path is not None, "the file was checked"
        return SqliteLeadership(lease.path)
    if lease.store == "postgres":
        from holdfast.storage.leadership.postgres import PostgresLeadership  # noqa: PLC0415

        assert lease.url_file is not None, "the file was checked"
        try:
            url = lease.url_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            problem = f"cannot be read: {getattr(error, 'strerror', '') or 'no text'}"
            fix = "write the database's URL into it, readable by this process"
            raise ConfigError("control.lease.url_file", problem, fix) from error
        return PostgresLeadership(url, lease.name)
    from holdfast.sources.kubernetes.api import KubernetesApi  # noqa: PLC0415
    from holdfast.sources.kubernetes.config import KubernetesConfig  # noqa: PLC0415
    from holdfast.sources.kubernetes.leadership import KubernetesLeadership  # noqa: PLC0415

    return KubernetesLeadership(KubernetesApi(KubernetesConfig()), lease.namespace, lease.name)


class Election:
    """One control's part in choosing who leads."""

    def __init__(
        self, section: ControlSection, name: str, store: LeadershipStore, run_dir: Path
    ) -> None:
        self._section = section
        self._own = section.own(name)
        self._store = store
        self._run_dir = run_dir
        self._holder = f"{name}:{os.getpid()}:{token_hex(4)}"  # a process, not a machine
        self._leadership = Leadership(section.leadership, self._holder, time.monotonic_ns())
        self._silent = False  # the store does not answer, and that was logged
        self._config: ConfigFrame | None = None
        self._view: ViewFrame | None = None
        self._certificate: PortCertificate | None = None
        self._claiming: asyncio.Future[None] | None = None

    @property
    def leader(self) -> str:
        """The member that leads, as far as is known; empty: unknown."""
        return self._leadership.leader.partition(":")[0]

    def holds(self) -> bool:
        """Whether this control leads at this moment."""
        return self._leadership.role(time.monotonic_ns()) is LeadershipRole.LEADER

    async def stand_by(self, stop: asyncio.Event) -> LeadingControl | None:
        """Wait until this control leads; None: it was told to stop before."""
        peers = _others(self._section, self._own.name)
        hello = Hello(f"control/{self._own.name}", os.getpid(), observes=True)
        links = ControlLinks(hello, peers, self._hear, self._forget)
        following = asyncio.ensure_future(links.keep())
        _log.info("standing by", control=self._own.name)
        try:
            while not stop.is_set():
                self._claim_if_due()
                if self.holds():
                    term = self._leadership.term
                    _log.info("leads", control=self._own.name, term=term)
                    return LeadingControl(term, self._port(), self.holds)
                await _either(stop, _LOOK_S)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            links.close()
        return None

    async def keep(self, term: int) -> None:
        """Renew the lease for as long as this control leads in this term."""
        while self.holds() and self._leadership.term == term:
            self._claim_if_due()
            if self._certificate is not None:
                self._certificate.refresh()
            await asyncio.sleep(_LOOK_S)

    async def leave(self) -> None:
        """Lead no more, and let the next one begin at once."""
        self._leadership.resign(time.monotonic_ns())
        if self._claiming is not None:
            self._claiming.cancel()
            await asyncio.gather(self._claiming, return_exceptions=True)
        try:
            async with asyncio.timeout(_RELEASE_S):
                await self._store.release(self._holder)
                await self._store.close()
        except (LeadershipStoreError, TimeoutError) as error:
            _log.warning("lease not given back; it runs out by itself", reason=str(error))

    # --- the lease -------------------------------------------------------------------------------

    def _claim_if_due(self) -> None:
        """Claim beside everything else: a store that hangs must not hide that the lease is over."""
        if self._leadership.claim_due(time.monotonic_ns()):
            self._claiming = asyncio.ensure_future(self._claim())

    async def _claim(self) -> None:
        lasts = self._section.leadership.lease_s
        answer = None
        try:
            async with asyncio.timeout(lasts):
                answer = await self._store.claim(self._holder, lasts)
            if self._silent:
                _log.info("the store of the leadership answers again")
            self._silent = False
        except (LeadershipStoreError, TimeoutError) as error:
            if not self._silent:
                _log.warning("the store of the leadership does not answer", reason=str(error))
            self._silent = True
        self._leadership.answered(answer, time.monotonic_ns())

    # --- what the leader tells -------------------------------------------------------------------

    def _forget(self) -> None:
        self._config = self._view = None

    def _hear(self, frame: Frame) -> None:
        """Keep what the leader tells its gateways: whoever leads next begins with it."""
        if isinstance(frame, ConfigFrame):
            self._config = frame
        elif isinstance(frame, ViewFrame):
            self._view = frame
        else:
            return
        if self._config is not None:
            try:
                write_state(self._run_dir / STATE_FILE, self._config, self._view)
            except OSError as error:
                _log.error("state not written", reason=error.strerror or type(error).__name__)

    # --- where gateways come ---------------------------------------------------------------------

    def _port(self) -> HubPort:
        section = self._section
        address = self._own.place if section.listen is None else parse_listen(section.listen)
        hosts = {member.name: member.place.host for member in section.members}
        if section.tls is not None:
            return HubPort(address, self._serving(section.tls), lambda: CertificateCheck(hosts))
        secret = _secret(section)
        return HubPort(address, None, lambda: SecretCheck(self._own.name, hosts, secret))

    def _serving(self, files: ControlTlsSection) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(files.certificate, files.key)
        self._certificate = PortCertificate(files.certificate, files.key, context, files.ca)
        return context


def _others(section: ControlSection, name: str) -> tuple[ControlAddress, ...]:
    """The addresses of the other controls, and how each of them is authenticated."""
    tls = None if section.tls is None else _caller(section.tls)
    secret = None if tls is not None else _secret(section)
    return tuple(
        ControlAddress(
            host=member.place.host,
            port=member.place.port,
            control=member.name,
            tls=tls,
            secret=secret,
        )
        for member in section.members
        if member.name != name
    )


def _secret(section: ControlSection) -> LinkSecret:
    path = section.shared_secret
    assert path is not None, "the file was checked"
    return LinkSecret(path)


def _caller(files: ControlTlsSection) -> Callable[[], ssl.SSLContext]:
    def context() -> ssl.SSLContext:
        """The certificate and the authority as their files are now."""
        found = calling_context(files.ca, files.certificate, files.key)
        if found is None:
            raise OSError(f"{files.certificate} and its key cannot be used")
        return found

    return context


async def _either(stop: asyncio.Event, limit_s: float) -> None:
    """Wait for a stop, no longer than this."""
    try:
        async with asyncio.timeout(limit_s):
            await stop.wait()
    except TimeoutError:
        return


__all__ = ["Election", "gateway_member", "leadership_store"]
