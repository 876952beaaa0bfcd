"""Canaries against stand-ins, and against servers that no engine would be."""

import asyncio
import re
import sys
import threading
import types

import orjson
import pytest

from holdfast.control.fetch import FetchError
from holdfast.control.fleet import canaries as module
from holdfast.control.fleet.disturbances import DETOUR, Disturbances
from holdfast.control.http_client import within
from holdfast.core.canary import AnswerKey, CanaryConfig, CanaryCost, Rule, Shape
from holdfast.core.health.answers.answer_book import AnswerBook
from holdfast.testing.standin import fault

KEY = AnswerKey("m", "1", "vllm")
INFER = orjson.dumps(
    {"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1.0, 2.0]}]}
).decode()


def ask(world, canary=None, *, engine="vllm", ailment=None, times=1, book=None, **options):
    """What one stand-in is told, and the stand-in."""

    async def main():
        replica = await world.standin(**options)
        if ailment is not None:
            replica.set_fault(ailment)
        canaries = world.canaries(book)
        deployed = world.deployed(replica.url, engine=engine, canary=canary)
        try:
            told = [await canaries.ask(deployed, 10.0) for _ in range(times)]
            await asyncio.gather(*canaries._choosing.values())
            return told[-1], replica.stats()
        finally:
            await replica.stop()

    return asyncio.run(main())


# --- every shape ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("canary", "engine"),
    [
        (CanaryConfig(), "vllm"),
        (CanaryConfig(), "llamacpp"),
        (CanaryConfig(), "openai"),
        (CanaryConfig(shape=Shape.CHAT, rule=Rule.EXACT), "sglang"),
        (CanaryConfig(shape=Shape.COMPLETION), "vllm"),
        (CanaryConfig(shape=Shape.EMBEDDING), "vllm"),
        (CanaryConfig(shape=Shape.INFER, body=INFER), "triton"),
    ],
)
def test_a_stand_in_answers_every_shape(world, canary, engine):
    book = AnswerBook()
    told, stats = ask(world, canary, engine=engine, book=book)
    assert told.verdict == "pass", told
    assert "no peer has confirmed it yet" in told.detail
    assert told.latency > 0
    words = canary.shape not in (Shape.EMBEDDING, Shape.INFER)
    assert stats["requests"] == 1 + words, "text is asked for once more, for its near ties"
    assert book.known(AnswerKey("m", "1", engine))


def test_text_costs_tokens_and_says_how_many(world):
    told, _ = ask(world, CanaryConfig(tokens=4))
    assert told.tokens > 4


def test_an_engine_without_a_question_is_believed_by_its_page_and_that_is_told(world):
    told, stats = ask(world, engine="triton")
    assert (told.verdict, stats["requests"]) == ("pass", 0)
    assert "its own page only" in told.detail
    told, _ = ask(world, engine="triton", ailment=fault("load_stall"))
    assert told.verdict == "fail"


def test_two_replicas_confirm_each_other_and_the_book_is_kept(world):
    async def main():
        book, kept = AnswerBook(), []
        canaries = world.canaries(book, learned=lambda: kept.append(book.export()))
        replicas = [await world.standin() for _ in range(2)]
        told = [
            await canaries.ask(world.deployed(one.url, f"m-{n}"), 10.0)
            for n, one in enumerate(replicas)
        ]
        for one in replicas:
            await one.stop()
        return told, kept, book

    told, kept, book = asyncio.run(main())
    assert [one.verdict for one in told] == ["pass", "pass"]
    assert "confirmed" in told[1].detail
    assert kept[-1] == book.export()
    assert book.is_confirmed(KEY)


def test_the_version_of_an_engine_is_a_part_of_whose_answers_compare(world):
    async def main():
        book = AnswerBook()
        canaries = module.Canaries({}, book, lambda: None, lambda name: f"b1 of {name}")
        replica = await world.standin()
        await canaries.ask(world.deployed(replica.url), 10.0)
        await replica.stop()
        return book.known(AnswerKey("m", "1", "vllm b1 of m-1"))

    assert asyncio.run(main())


# --- near ties -----------------------------------------------------------------------------------


def asked_often(world, times, canary=None, **options):
    """The verdicts of so many canaries at one stand-in, which is then asked no more."""

    async def main():
        book, kept = AnswerBook(), []
        canaries = world.canaries(book, learned=lambda: kept.append(book.export()))
        replica = await world.standin(**options)
        deployed = world.deployed(replica.url, canary=canary)
        told = []
        for _ in range(times):
            told.append(await canaries.ask(deployed, 10.0))
            await asyncio.gather(*canaries._choosing.values())
        stats = replica.stats()
        await replica.stop()
        return told, stats["requests"], book, kept

    return asyncio.run(main())


def test_where_two_words_are_tied_both_answers_are_right(world):
    told, asked, book, kept = asked_often(world, 30, tied=0.5)
    # The first canary teaches the answer, one of the next few where its ties are.
    assert {one.verdict for one in told[-20:]} == {"pass"}
    assert any("nearly as likely" in one.detail for one in told[-20:])
    assert asked == 30 + 1, "they are asked for once"
    (known,) = book.known(KEY)
    assert len(known.near_ties) == 1
    assert kept[-1] == book.export()


def test_a_model_that_is_sure_has_no_tie_to_excuse_a_wrong_answer(world):
    async def main():
        book = AnswerBook()
        canaries = world.canaries(book)
        replica = await world.standin()
        deployed = world.deployed(replica.url)
        for _ in range(3):
            await canaries.ask(deployed, 10.0)
            await asyncio.gather(*canaries._choosing.values())
        replica.set_fault(fault("wrong_output"))
        told = await canaries.ask(deployed, 10.0)
        await replica.stop()
        return told, book

    told, book = asyncio.run(main())
    assert told.verdict == "unsettled"
    assert book.known(KEY)[0].near_ties == ()


def test_money_is_not_spent_on_near_ties(world):
    told, asked, book, _ = asked_often(world, 5, CanaryConfig(cost=CanaryCost.BILLED))
    assert [one.verdict for one in told] == ["pass"] * 5
    assert asked == 5
    assert book.known(KEY)[0].near_ties is None


@pytest.mark.parametrize("answer", [(200, "", b"{}"), (400, "", b"no"), b"HTTP/1.1 200 OK\r\n"])
def test_an_engine_that_cannot_tell_its_ties_is_asked_three_times(world, answer):
    streamed = (
        b'data: {"choices":[{"index":0,"delta":{"content":"one two"},"finish_reason":"stop"}]}'
        b"\n\ndata: [DONE]\n\n"
    )

    async def main():
        server = await bare(world, {CHAT: (200, "", streamed)})
        canaries, deployed = world.canaries(), world.deployed(server.url)
        verdicts = []
        for _ in range(8):
            verdicts.append((await canaries.ask(deployed, 10.0)).verdict)
            server.answers[CHAT] = answer  # of the question beside the canary
            await asyncio.gather(*canaries._choosing.values())
            server.answers[CHAT] = (200, "", streamed)
        await server.stop()
        return verdicts, server.asked.count(CHAT)

    verdicts, asked = asyncio.run(main())
    assert set(verdicts) == {"pass"}
    assert asked == 8 + 3


def test_nothing_is_asked_on_when_control_stops(world):
    async def main():
        replica = await world.standin()
        canaries = world.canaries()
        told = await canaries.ask(world.deployed(replica.url), 10.0)
        replica.set_fault(fault("hang"))
        (asking,) = canaries._choosing.values()
        await canaries.close()
        await replica.stop()
        return told.verdict, asking.cancelled(), canaries._choosing

    assert asyncio.run(main()) == ("pass", True, {})


# --- shapes that are found out -------------------------------------------------------------------

TEXT = (
    b'data: {"choices":[{"index":0,"text":"one two","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)
VECTOR = b'{"data":[{"embedding":[0.6,0.8]}],"usage":{"prompt_tokens":3}}'
CHAT, COMPLETION, EMBEDDING = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"


async def bare(world, answers):
    server = await world.Engine().start()
    server.answers = {"/health": (200, "", b""), **answers}
    server.default = (404, "", b"{}")
    return server


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ({COMPLETION: (200, "", TEXT)}, [CHAT, COMPLETION]),
        ({CHAT: (501, "", b""), COMPLETION: (200, "", TEXT)}, [CHAT, COMPLETION]),
        ({CHAT: (400, "", b""), EMBEDDING: (200, "", VECTOR)}, [CHAT, COMPLETION, EMBEDDING]),
    ],
)
def test_what_an_engine_takes_is_found_out_once(world, answers, asked):
    async def main():
        server = await bare(world, answers)
        canaries, deployed = world.canaries(), world.deployed(server.url)
        told, paths = [], []
        for _ in range(2):
            before = len(server.asked)
            told.append(await canaries.ask(deployed, 10.0))
            await asyncio.gather(*canaries._choosing.values())  # the same path once more
            paths.append(list(dict.fromkeys(server.asked[before:])))
        await server.stop()
        return *told, *([path for path in each if path != "/health"] for each in paths)

    first, again, found, last = asyncio.run(main())
    assert (first.verdict, again.verdict) == ("pass", "pass")
    assert (found, last) == (asked, asked[-1:])


def test_what_was_found_out_is_tried_anew_when_it_is_refused(world):
    async def main():
        server = await bare(world, {COMPLETION: (200, "", TEXT)})
        canaries, deployed = world.canaries(), world.deployed(server.url)
        told = [await canaries.ask(deployed, 10.0)]
        server.answers = {"/health": (200, "", b""), EMBEDDING: (200, "", VECTOR)}
        told += [await canaries.ask(deployed, 10.0) for _ in range(2)]
        await server.stop()
        return [one.verdict for one in told]

    assert asyncio.run(main()) == ["pass", "fail", "pass"]


def test_who_takes_no_question_at_all_is_told_how_to_mend_the_file(world):
    async def main():
        server = await bare(world, {})
        told = await world.canaries().ask(world.deployed(server.url), 10.0)
        await server.stop()
        return told

    told = asyncio.run(main())
    assert told.verdict == "fail"
    assert "set canary.shape" in told.detail


def test_a_shape_that_the_file_names_is_the_only_one_asked(world):
    async def main():
        server = await bare(world, {COMPLETION: (200, "", TEXT)})
        deployed = world.deployed(server.url, canary=CanaryConfig(shape=Shape.CHAT))
        told = await world.canaries().ask(deployed, 10.0)
        await server.stop()
        return told, server.asked

    told, asked = asyncio.run(main())
    assert told.verdict == "fail"
    assert asked == ["/health", CHAT]


# --- what is not right ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ailment", "verdict", "why"),
    [
        (fault("garbage"), "wrong", ""),
        (fault("garbage", form="bytes"), "fail", "no event stream"),
        (fault("garbage", form="json"), "fail", "not JSON"),
        (fault("empty"), "fail", "without a word"),
        (fault("error_frame", tokens=2), "fail", "error event"),
        (fault("close", tokens=2, form="end"), "fail", "cut off"),
        (fault("status", code=500), "fail", "500"),
        (fault("status", code=401), "fail", "key"),
        (fault("refuse_busy"), "busy", "429"),
        (fault("status", code=503, instant=True, retry_after=True), "busy", "Retry-After"),
        (fault("status", code=503), "fail", "503"),
        (fault("black_hole"), "fail", "500"),
    ],
)
def test_what_goes_wrong_in_an_answer_is_told_apart(world, ailment, verdict, why):
    told, _ = ask(world, ailment=ailment)
    assert told.verdict == verdict, told
    assert why in told.detail
    assert told.latency == 0 or verdict == "wrong"


def test_a_wrong_answer_is_wrong_where_the_right_one_is_known(world):
    book = AnswerBook()
    for n in range(2):  # two who agree

        async def learn(n=n):
            replica = await world.standin()
            await world.canaries(book).ask(world.deployed(replica.url, f"m-{n}"), 10.0)
            await replica.stop()

        asyncio.run(learn())
    told, _ = ask(world, book=book, ailment=fault("wrong_output"))
    assert told.verdict == "wrong"
    assert "not as this revision is known to answer" in told.detail
    told, _ = ask(world, book=book)
    assert told.verdict == "pass"


@pytest.mark.parametrize(("expect", "verdict"), [("no such words", "wrong"), (None, "pass")])
def test_what_the_file_expects_decides_alone(world, expect, verdict):
    canary = CanaryConfig()
    if expect is None:
        book = AnswerBook()
        ask(world, canary, book=book)
        (said,) = book.known(KEY)
        expect = said.text.split()[1]
    told, _ = ask(world, CanaryConfig(expect=(expect,)))
    assert told.verdict == verdict


def test_one_who_disagrees_before_anything_is_confirmed_is_unsettled(world):
    async def main():
        canaries = world.canaries()
        one, two = await world.standin(), await world.standin()
        two.set_fault(fault("wrong_output"))
        first = await canaries.ask(world.deployed(one.url, "m-1"), 10.0)
        other = await canaries.ask(world.deployed(two.url, "m-2"), 10.0)
        canaries.forget("m-1")
        alone = await canaries.ask(world.deployed(two.url, "m-2"), 10.0)
        await one.stop()
        await two.stop()
        return [told.verdict for told in (first, other, alone)]

    assert asyncio.run(main()) == ["pass", "unsettled", "pass"]


def test_a_server_without_the_model_fails_and_says_so(world):
    told, _ = ask(world, models=("another",))
    assert told.verdict == "fail"
    assert "does not have the model" in told.detail


def test_one_that_loads_and_has_no_page_is_busy_by_its_answer(world):
    async def main():
        server = await world.Engine().start()
        server.default = (503, "", b'{"error":{"message":"Loading model"}}')
        told = await world.canaries().ask(world.deployed(server.url, engine="llamacpp"), 5.0)
        await server.stop()
        return told

    told = asyncio.run(main())
    assert (told.verdict, told.draining) == ("busy", False)


SCALING = (503, "", b'{"error":"The model is currently scaling. Please try again later."}')


@pytest.mark.parametrize("answers", [{"/health": SCALING}, {CHAT: SCALING}])
def test_one_that_says_that_it_takes_no_new_work_is_busy_and_drains(world, answers):
    async def main():
        server = await bare(world, answers)
        told = await world.canaries().ask(world.deployed(server.url), 10.0)
        await server.stop()
        return told

    told = asyncio.run(main())
    assert (told.verdict, told.draining) == ("busy", True)
    assert "takes no new work" in told.detail


def test_one_that_still_loads_is_busy_by_its_page(world):
    told, stats = ask(world, engine="llamacpp", ailment=fault("load_stall"))
    assert (told.verdict, told.detail) == ("busy", "it still loads")
    assert stats["requests"] == 0


@pytest.mark.parametrize(
    ("page", "verdict"),
    [
        ((429, "", b""), "busy"),
        ((503, "retry-after: 1\r\n", b""), "busy"),
        ((503, "", b"Request queue full."), "busy"),
    ],
)
def test_a_page_that_pushes_back_is_all_that_is_asked(world, page, verdict):
    async def main():
        server = await bare(world, {"/health": page})
        told = await world.canaries().ask(world.deployed(server.url), 10.0)
        await server.stop()
        return told, server.asked

    told, asked = asyncio.run(main())
    assert (told.verdict, asked) == (verdict, ["/health"])


PAGES = [
    ((500, "", b""), "its health page answers 500"),
    ((503, "", b""), "its health page answers 503"),
    ((404, "", b""), "its health page answers 404"),
    (b"", "its health page breaks off"),
    (b"what is this\r\n\r\n", "its health page breaks off"),
]


def answered(world, page, answer, engine="vllm", deadline_s=10.0):
    async def main():
        server = await bare(world, {"/health": page, "/v1/models": page, COMPLETION: answer})
        deployed = world.deployed(
            server.url, engine=engine, canary=CanaryConfig(shape=Shape.COMPLETION)
        )
        try:
            return await world.canaries().ask(deployed, deadline_s), server.asked
        finally:
            await server.stop()

    return asyncio.run(main())


@pytest.mark.parametrize(("page", "trouble"), PAGES)
def test_a_right_answer_passes_whatever_the_page_says_and_the_page_is_told(world, page, trouble):
    told, asked = answered(world, page, (200, "", TEXT))
    assert (told.verdict, told.page_ok, told.status) == ("pass", False, 200)
    assert told.detail.startswith(f"answers right; {trouble}")
    assert asked == ["/health", COMPLETION]


@pytest.mark.parametrize(("page", "trouble"), PAGES)
def test_an_answer_that_is_none_has_the_page_as_its_explanation(world, page, trouble):
    told, _ = answered(world, page, (502, "", b""))
    assert (told.verdict, told.page_ok, told.status) == ("fail", False, 502)
    assert told.detail == f"HTTP 502; {trouble}"


def test_a_missing_answer_keeps_what_its_page_said(world):
    class Hung(world.Engine):
        async def _serve(self, reader, writer):
            self.silent = bool(self.asked)  # the page answers, and nothing behind it
            await super()._serve(reader, writer)

    async def main():
        server = await Hung().start()
        server.default = (500, "", b"")
        try:
            await world.canaries().ask(world.deployed(server.url), 0.3)
        finally:
            await server.stop()

    with pytest.raises(module.CanaryError) as caught:
        asyncio.run(main())
    assert (caught.value.what, caught.value.page_ok, caught.value.status) == ("timeout", False, 500)
    assert "its health page answers 500" in str(caught.value)


def test_an_engine_of_which_nothing_is_known_needs_no_page(world):
    told, asked = answered(world, (500, "", b""), (200, "", TEXT), engine="openai")
    assert (told.verdict, told.page_ok) == ("pass", None)
    assert "page" not in told.detail
    assert asked == [COMPLETION]


def test_nobody_there_is_refused(world):
    async def main():
        url = f"http://127.0.0.1:{world.free_port()}"
        await world.canaries().ask(world.deployed(url), 5.0)

    with pytest.raises(FetchError) as caught:
        asyncio.run(main())
    assert caught.value.what == "refused"


def test_a_hung_engine_times_out_though_its_page_is_green(world):
    async def main():
        replica = await world.standin()
        replica.set_fault(fault("hang"))
        try:
            await world.canaries().ask(world.deployed(replica.url), 0.3)
        finally:
            await replica.stop()

    with pytest.raises(FetchError) as caught:
        asyncio.run(main())
    assert caught.value.what == "timeout"
    # What the page has left of the deadline, in digits that a person reads.
    assert re.search(r"nothing within 0\.\d\d? s", str(caught.value))


@pytest.mark.parametrize(
    ("left_s", "told"),
    [(4.99599, "5 s"), (0.2537, "0.25 s"), (0.001, "0.01 s"), (120.0, "120 s"), (3600.0, "3600 s")],
)
def test_a_deadline_is_told_in_few_digits(left_s, told):
    assert within(left_s) == f"within {told}"


def test_a_page_that_is_late_is_no_verdict_where_the_question_is_answered(world, monkeypatch):
    monkeypatch.setattr(module, "_HEALTH_S", 0.05)

    class Late(world.Engine):
        async def _serve(self, reader, writer):
            self.silent = not self.asked  # the first who asks waits in vain
            await super()._serve(reader, writer)

    async def main():
        server = await Late().start()
        server.answers[CHAT] = (404, "", b"")
        server.answers[COMPLETION] = (200, "", TEXT)
        told = await world.canaries().ask(world.deployed(server.url), 10.0)
        asked = list(server.asked)
        await server.stop()
        return told, asked

    told, asked = asyncio.run(main())
    assert told.verdict == "pass"
    assert asked == ["/health", CHAT, COMPLETION]


def test_a_page_that_is_all_there_is_has_the_whole_deadline_and_no_more(world, monkeypatch):
    monkeypatch.setattr(module, "_HEALTH_S", 0.01)

    async def main():
        server = await world.Engine().start()
        server.silent = True
        try:
            await world.canaries().ask(world.deployed(server.url, engine="triton"), 0.2)
        finally:
            await server.stop()

    with pytest.raises(FetchError) as caught:
        asyncio.run(main())
    assert (caught.value.what, "0.2 s" in str(caught.value)) == ("timeout", True)


def test_the_engine_s_own_token_is_sent(world):
    async def main():
        server = await bare(world, {CHAT: (200, "", b"")})
        deployed = module.replace(world.deployed(server.url), api_key_env="ENGINE_KEY")
        await world.canaries(environment={"ENGINE_KEY": "secret"}).ask(deployed, 10.0)
        await server.stop()
        return server.heads

    heads = asyncio.run(main())
    assert len(heads) == 2
    assert all(b"authorization: bearer secret" in head.lower() for head in heads)


def test_at_a_detour_the_engine_s_own_token_is_not_sent(world):
    deaf = types.SimpleNamespace(note=lambda _: None, broadcast=lambda _: None)
    detoured = Disturbances(deaf)
    detoured.follow(0, enabled=True)

    async def main():
        server = await bare(world, {CHAT: (200, "", b"")})
        there = module.replace(world.deployed("http://127.0.0.1:9"), api_key_env="ENGINE_KEY")
        assert detoured.begin(there.replica.id, DETOUR, 10.0, 0, server.url)[0]
        asked = world.canaries(environment={"ENGINE_KEY": "secret"})
        await asked.ask(detoured.reach(there), 10.0)
        await server.stop()
        return server.heads

    heads = asyncio.run(main())
    assert len(heads) == 2
    assert not any(b"secret" in head or b"authorization" in head.lower() for head in heads)


# --- checks of the user's own --------------------------------------------------------------------


@pytest.fixture
def checks(monkeypatch):
    """A module of the user's, with what they might write."""
    found = types.ModuleType("users_checks")
    found.go_on, found.entered = threading.Event(), threading.Event()
    found.right = lambda status, body: status == 200 and body == b"fine"
    found.why = lambda *_: "the picture is black"
    found.raises = lambda *_: 1 / 0
    found.number = lambda *_: 7

    def hangs(*_):
        found.entered.set()
        return found.go_on.wait(20)

    found.hangs = hangs
    monkeypatch.setitem(sys.modules, "users_checks", found)
    yield found
    found.go_on.set()


def check_of(name):
    return CanaryConfig(
        shape=Shape.HTTP, path="/generate", body='{"x":1}', check=f"users_checks:{name}"
    )


def checked(world, name, body=b"fine", deadline_s=10.0):
    async def main():
        server = await bare(world, {"/generate": (200, "", body)})
        deployed = world.deployed(server.url, canary=check_of(name))
        try:
            return await world.canaries().ask(deployed, deadline_s)
        finally:
            await server.stop()

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "body", "verdict", "why"),
    [
        ("right", b"fine", "pass", ""),
        ("right", b"foul", "wrong", "the check refused it"),
        ("why", b"fine", "wrong", "the picture is black"),
        ("raises", b"fine", "fail", "ZeroDivisionError"),
        ("number", b"fine", "fail", "int"),
    ],
)
def test_a_check_of_the_user_s_decides(world, checks, name, body, verdict, why):
    told = checked(world, name, body)
    assert told.verdict == verdict
    assert why in told.detail


def test_a_check_that_hangs_fails_in_time_and_holds_up_nobody(world, checks):
    told = checked(world, "hangs", deadline_s=1.0)
    assert (told.verdict, told.detail) == ("fail", "its check did not return in time")


def test_checks_that_all_hang_are_bounded(world, checks, monkeypatch):
    monkeypatch.setattr(module, "CHECKS_MAX", 1)

    async def main():
        server = await bare(world, {"/generate": (200, "", b"fine")})
        canaries = world.canaries()
        deployed = world.deployed(server.url, canary=check_of("hangs"))
        first = asyncio.create_task(canaries.ask(deployed, 10.0))
        await world.until(checks.entered.is_set)
        second = await canaries.ask(deployed, 10.0)
        checks.go_on.set()
        told = [await first, second, await canaries.ask(deployed, 10.0)]
        await server.stop()
        return told

    first, second, third = asyncio.run(main())
    assert second.verdict == "fail"
    assert "1 checks are under way already" in second.detail
    assert (first.verdict, third.verdict) == ("pass", "pass")


def test_an_http_answer_may_be_told_by_what_it_must_contain(world):
    async def main():
        server = await bare(world, {"/generate": (200, "", b"all is fine")})
        told = []
        for words in ("fine", "foul"):
            canary = CanaryConfig(shape=Shape.HTTP, path="/generate", body="{}", expect=(words,))
            deployed = world.deployed(server.url, canary=canary)
            told.append(await world.canaries().ask(deployed, 10.0))
        await server.stop()
        return [one.verdict for one in told]

    assert asyncio.run(main()) == ["pass", "wrong"]


# --- what its own page said ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "question", "page_ok", "status"),
    [
        ((200, "", b"{}"), (500, "", b"{}"), True, 500),
        ((503, "", b"{}"), (200, "", b"{}"), False, 200),
        ((429, "", b"{}"), (200, "", b"{}"), False, 429),
    ],
)
def test_a_verdict_says_what_the_page_and_the_question_brought(
    world, page, question, page_ok, status
):
    async def main():
        server = await world.Engine().start()
        server.answers, server.default = {"/health": page}, question
        try:
            return await world.canaries().ask(world.deployed(server.url), 5.0)
        finally:
            await server.stop()

    told = asyncio.run(main())
    assert (told.page_ok, told.status) == (page_ok, status)


def test_a_right_answer_comes_with_its_page_and_status(world):
    told, _ = ask(world)
    assert (told.verdict, told.page_ok, told.status) == ("pass", True, 200)


def test_silence_says_whether_the_page_was_green(world):
    async def main():
        replica = await world.standin()
        replica.set_fault(fault("hang"))
        silent = await world.Engine().start()
        silent.silent = True
        found = []
        try:
            for url in (replica.url, silent.url, f"http://127.0.0.1:{world.free_port()}"):
                with pytest.raises(module.CanaryError) as caught:
                    await world.canaries().ask(world.deployed(url), 0.3)
                found.append((caught.value.what, caught.value.page_ok))
        finally:
            await replica.stop()
            await silent.stop()
        return found

    assert asyncio.run(main()) == [("timeout", True), ("timeout", False), ("refused", False)]
