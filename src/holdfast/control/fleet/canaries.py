"""The canary: a test request to a replica, read to its last token, whose answer is judged.

A canary bypasses gateways and their queues and goes to busy replicas, too: what users get is what
counts. First the engine's own health page is read, where it has one: it explains, and the answer to
the question decides.

    page: refused ─► refused            page: loading, draining, 429 or Retry-After ─► busy
    page: 200, an error, broken, late, or none ─► the question ─► its answer is judged

A right answer passes whatever the page says, and what the page says is shown beside it. A page that
is late explains nothing: a server full of long prompts has no time for pages either, and the
question has the rest of the deadline. A good page alone does not make a replica ready, except where
an engine has no question that fits every model (Triton) and the file gives none: then the page of
the model is all there is, and the verdict's detail notes it.

Where the file does not set the kind of question, a chat is tried, then a completion, then an
embedding. An engine that refuses all three as bad requests points to a mistake in the file, and the
reason says how to correct it.

Beside the canaries, and a few times in a revision's life, the same question is asked with log
probabilities: where two tokens of the known answer are nearly tied, who takes the other is right.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from holdfast.config.fleet_file import Deployed
from holdfast.control.detached_call import detached
from holdfast.control.fetch import FetchError, HttpAnswer, Overtime, fetch
from holdfast.control.fleet.checks import Check, load_check
from holdfast.core.canary import AnswerKey, CanaryConfig, CanaryVerdict, Said, Shape
from holdfast.core.canary_overtime import BodyPieces
from holdfast.core.failure import Kind
from holdfast.core.health.answers.agreement import usual_rule
from holdfast.core.health.answers.answer_book import AnswerBook
from holdfast.engines import Dialect, dialect
from holdfast.engines.canary_protocol import CanaryRequest, Trouble, ask, read
from holdfast.engines.token_choices import ask_choices, read_choices

_SHAPES: Final = (Shape.CHAT, Shape.COMPLETION, Shape.EMBEDDING)
_NOT_MY_KIND: Final = frozenset({400, 404, 405, 415, 422, 501})
_VERDICTS: Final = {
    "busy": CanaryVerdict.BUSY,
    "loading": CanaryVerdict.BUSY,
    "draining": CanaryVerdict.BUSY,
    "missing": CanaryVerdict.FAIL,
    "fail": CanaryVerdict.FAIL,
}
_HEALTH_S: Final = 2.0  # a page without inference; the question has what is left of the deadline
_CHOICES_S: Final = 30.0  # for the question with log probabilities: nobody waits for it
_CHECK_S: Final = 0.2  # a check has so long at least, however late the answer came
CHECKS_MAX: Final = 8  # of the user's own at a time; so many that hang are the file's fault


@dataclass(slots=True, frozen=True)
class CanaryReport:
    """What one canary found at a replica, before the fleet draws conclusions.

    Times are in ns; a verdict of BUSY, FAIL and so on is here, while a canary without any answer
    raises ``CanaryError``.
    """

    verdict: CanaryVerdict
    detail: str = ""
    latency: int = 0  # of the answer, where one came in full
    tokens: int = 0  # that it cost
    page_ok: bool | None = None  # whether its own health page answered well just before
    status: int | None = None  # of the HTTP answer, where one came
    took: int = 0  # until whatever came was complete, an error too
    flaw: Kind | None = None  # EMPTY, DEGENERATE, CUT, RESET or CONNECT_TIMEOUT: no answer
    draining: bool = False  # the engine says that it takes no new work; the verdict is BUSY
    pieces: BodyPieces = field(default_factory=BodyPieces)  # of the answer, complete or not


@dataclass(slots=True, frozen=True)
class HealthPage:
    """What an engine's own health page said just before the canary's question.

    Where ``verdict`` is set the page alone decides and the question is not sent.
    """

    ok: bool | None = None  # whether it answered 200; None: the engine has no page
    status: int | None = None  # of another answer than 200
    trouble: str = ""  # for people; empty where nothing is wrong with it
    verdict: CanaryReport | None = None  # where the page says enough: the question is not asked


class CanaryError(FetchError):
    """A canary got no answer (refused, timeout or broken connection).

    ``page_ok`` and ``status`` say what the health page had answered before.
    """

    def __init__(self, error: FetchError, page: HealthPage) -> None:
        detail = f"{error.detail}; {page.trouble}" if page.trouble else error.detail
        super().__init__(
            error.what,
            detail,
            lost=error.lost,
            connected=error.connected,
            pieces=error.pieces,
        )
        self.page_ok = page.ok
        self.status = page.status


class Canaries:
    """Sends canaries to replicas and judges the answers by the answer book, ``expect`` or a check.

    Right answers are learned into the book; ``learned`` is called whenever it changed.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        book: AnswerBook,
        learned: Callable[[], None],
        version: Callable[[str], str] = lambda _: "",
    ) -> None:
        self._environment = environment
        self._version = version  # of a replica's engine, as far as known: it may answer otherwise
        self._book = book
        self._learned = learned  # the book changed: it should be kept
        self._shapes: dict[tuple[str, str], Shape] = {}  # what (model, engine) was found to answer
        self._checking: set[asyncio.Task[Said | Trouble]] = set()
        self._choosing: dict[AnswerKey, asyncio.Task[None]] = {}  # asking for log probabilities

    async def close(self) -> None:
        """Cancel the questions for log probabilities that are under way; canaries are not here."""
        tasks = list(self._choosing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def forget(self, replica_id: str) -> None:
        """Remove the learned answers that only this replica gave, as it has left for good."""
        if self._book.forget_replica(replica_id):
            self._learned()

    async def ask(
        self, deployed: Deployed, deadline_s: float, overtime: Overtime | None = None
    ) -> CanaryReport:
        """Send one canary (health page, then question), judge the answer and return the report.

        Raises ``CanaryError`` where no answer came within ``deadline_s``. ``overtime`` is called
        when the answer is overdue and says for how many seconds more to read on; 0 ends it.
        """
        until = time.monotonic() + deadline_s
        known = dialect(deployed.engine)
        config = deployed.canary
        shape = config.shape or known.canary_shape
        page_only = shape is Shape.INFER and not config.body
        page = await self._look(deployed, known, deadline_s, page_only=page_only)
        if page.verdict is not None:
            return page.verdict
        try:
            report = await self._question(deployed, known, until, deadline_s, overtime)
        except FetchError as error:
            raise CanaryError(error, page) from error
        return _beside(report, page)

    async def _look(
        self, deployed: Deployed, known: Dialect, deadline_s: float, *, page_only: bool
    ) -> HealthPage:
        """Read the engine's health page; ``CanaryError`` where nobody listens, or it is all."""
        path = known.health_path
        if known.model_health_path is not None:
            path = known.model_health_path.replace("{model}", deployed.served_as)
        if path is None:
            return HealthPage()
        token = bearer(deployed, self._environment)
        page_s = deadline_s if page_only else min(_HEALTH_S, deadline_s)
        try:
            answer = await fetch(deployed.url, path, page_s, bearer=token, tls=deployed.context())
        except FetchError as error:
            if page_only or error.what == "refused":
                raise CanaryError(error, HealthPage(ok=False)) from error
            late = error.what == "timeout"
            trouble = "its health page is late" if late else "its health page breaks off"
            return HealthPage(ok=False, trouble=trouble)
        report = _read_page(known, answer)
        if report.verdict.right:
            return HealthPage(ok=True, verdict=report if page_only else None)
        enough = page_only or report.verdict is CanaryVerdict.BUSY
        return HealthPage(
            ok=False,
            status=answer.status,
            trouble=report.detail,
            verdict=replace(report, page_ok=False, status=answer.status) if enough else None,
        )

    async def _question(
        self,
        deployed: Deployed,
        known: Dialect,
        until: float,
        deadline_s: float,
        overtime: Overtime | None,
    ) -> CanaryReport:
        """Ask kinds of question in turn until the engine does not refuse one as a bad request."""
        config = deployed.canary
        refusal = CanaryReport(CanaryVerdict.FAIL, "no question fits")
        for attempt in self._candidates(deployed, known):
            asked = replace(config, shape=attempt)
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise FetchError("timeout", f"nothing within {deadline_s:g} s")
            began = time.monotonic_ns()
            sent = ask(known, asked, deployed.served_as)
            answer = await self._send(deployed, sent, left_s, overtime)
            latency = time.monotonic_ns() - began
            told = await self._judge(deployed, known, asked, answer, latency, until)
            told = replace(told, status=answer.status, took=latency, pieces=answer.pieces)
            if answer.status not in _NOT_MY_KIND or config.shape is not None:
                if answer.status == 200:
                    self._shapes[deployed.replica.model, deployed.engine] = attempt
                return told
            refusal = replace(told, detail=f"{told.detail}; if it takes no chat, set canary.shape")
        # What was found once may be another now: all kinds are tried the next time.
        self._shapes.pop((deployed.replica.model, deployed.engine), None)
        return refusal

    def _candidates(self, deployed: Deployed, known: Dialect) -> tuple[Shape, ...]:
        shape = deployed.canary.shape
        if shape is not None:
            return (shape,)
        found = self._shapes.get((deployed.replica.model, deployed.engine))
        if found is not None:
            return (found,)
        return _SHAPES if known.canary_shape is Shape.CHAT else (known.canary_shape,)

    async def _send(
        self,
        deployed: Deployed,
        asked: CanaryRequest,
        deadline_s: float,
        overtime: Overtime | None = None,
    ) -> HttpAnswer:
        return await fetch(
            deployed.url,
            asked.path,
            deadline_s,
            bearer=bearer(deployed, self._environment),
            body=asked.body,
            tls=deployed.context(),
            overtime=overtime,
        )

    async def _judge(
        self,
        deployed: Deployed,
        known: Dialect,
        config: CanaryConfig,
        answer: HttpAnswer,
        latency: int,
        until: float,
    ) -> CanaryReport:
        asked = ask(known, config, deployed.served_as)
        came = (answer.status, answer.headers, answer.body)
        if config.check:
            said = await self._checked(known, asked, came, load_check(config.check), until)
        else:
            said = await asyncio.to_thread(read, known, asked, *came)
        if isinstance(said, Trouble):
            draining = said.verdict == "draining"
            verdict = _VERDICTS[said.verdict]
            return CanaryReport(verdict, said.detail, flaw=said.flaw, draining=draining)
        replica = deployed.replica
        engine = f"{deployed.engine} {self._version(replica.id)}".rstrip()
        key = AnswerKey(replica.model, replica.revision, engine, deployed.precision)
        rule = config.rule or usual_rule(config, said, bit_stable=known.bit_stable)
        judged = self._book.judge(key, config, rule, replica.id, said)
        if judged.learned:
            self._learned()
        if judged.verdict is CanaryVerdict.PASS:
            self._learn_choices(deployed, known, config, key)
        cost = said.prompt_tokens + said.tokens
        return CanaryReport(judged.verdict, judged.reason, latency, cost, flaw=judged.flaw)

    def _learn_choices(
        self, deployed: Deployed, known: Dialect, config: CanaryConfig, key: AnswerKey
    ) -> None:
        """Ask a replica that was right for the near ties of its answer, where nobody knows them."""
        if config.billed or key in self._choosing or not self._book.wants_choices(key, config):
            return
        asked = ask_choices(known, config, deployed.served_as)
        if asked is not None:
            task = asyncio.create_task(self._ask_choices(deployed, asked, key))
            self._choosing[key] = task
            task.add_done_callback(lambda _: self._choosing.pop(key, None))

    async def _ask_choices(self, deployed: Deployed, asked: CanaryRequest, key: AnswerKey) -> None:
        try:
            answer = await self._send(deployed, asked, _CHOICES_S)
            choices = await asyncio.to_thread(read_choices, answer.status, answer.body)
        except FetchError:
            choices = ()  # a try that told nothing; canaries find what is wrong with the replica
        if self._book.take_choices(key, choices):
            self._learned()

    async def _checked(
        self,
        known: Dialect,
        asked: CanaryRequest,
        came: tuple[int, Mapping[str, str], bytes],
        check: Check,
        until: float,
    ) -> Said | Trouble:
        """Judge an answer by the user's own check, in a thread with a time limit: it may hang."""
        if len(self._checking) >= CHECKS_MAX:
            return Trouble("fail", f"{CHECKS_MAX} checks are under way already, or hang")
        work = asyncio.create_task(detached(read, known, asked, *came, check))
        self._checking.add(work)
        work.add_done_callback(self._checking.discard)
        done, _ = await asyncio.wait({work}, timeout=max(_CHECK_S, until - time.monotonic()))
        return work.result() if done else Trouble("fail", "its check did not return in time")


def _beside(report: CanaryReport, page: HealthPage) -> CanaryReport:
    """The report of an answer, with what the health page said before it."""
    detail = report.detail
    if page.trouble and report.verdict.right:
        detail = f"answers right; {page.trouble}" + (f" ({detail})" if detail else "")
    elif page.trouble:
        detail = f"{detail}; {page.trouble}"
    return replace(report, detail=detail, page_ok=page.ok)


def _read_page(known: Dialect, page: HttpAnswer) -> CanaryReport:
    """The report of a health page alone: BUSY if it loads, drains or is overloaded, else FAIL."""
    if page.status == 200:
        told = "its own page only: models[].canary gives no inference to ask"
        return CanaryReport(CanaryVerdict.PASS, told, page_ok=True)
    busy = page.status == 429 or (page.status == 503 and "retry-after" in page.headers)
    if known.says_loading(page.status, page.body, page.headers):
        return CanaryReport(CanaryVerdict.BUSY, "it still loads")
    if known.says_draining(page.status, page.body):
        told = "its health page says that it takes no new work"
        return CanaryReport(CanaryVerdict.BUSY, told, draining=True)
    if busy or known.says_busy(page.status, page.body):
        return CanaryReport(CanaryVerdict.BUSY, f"its health page answers {page.status}")
    return CanaryReport(CanaryVerdict.FAIL, f"its health page answers {page.status}")


def bearer(deployed: Deployed, environment: Mapping[str, str]) -> str | None:
    """The engine's API key from an environment variable or a file; None where none is set."""
    return deployed.token(environment)


__all__ = ["CHECKS_MAX", "Canaries", "CanaryError", "CanaryReport", "HealthPage", "bearer"]
