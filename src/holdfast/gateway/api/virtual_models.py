"""Resolves virtual models: which real model serves a public name, for one request.

Rules are compiled at start, so that a request walks a short list of comparisons and gets a path
that was made beforehand. Rules see facts about a request, never its text.

A hook is the operator's own Python function, imported at start. It is called on the event loop of
the gateway with a dict of facts and returns a bool (the rule matches or not) or a model's name. It
must not block: no network, no disk, no waiting, or every stream of this process waits with it. A
hook that raises, or returns anything else, is counted, and its rule does not match.

Rejected: hooks in threads with a timeout. The hand-over costs more than all rules together, and a
function that hangs cannot be ended from outside.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from inspect import iscoroutinefunction
from typing import Any, Final

import orjson

from holdfast.config.virtual import RuleSection, VirtualSection, WhenSection
from holdfast.core.types import ConfigError

Hook = Callable[[dict[str, Any]], object]

_NO_MODELS: Final[frozenset[str]] = frozenset()


class RequestFacts:
    """The facts about a request that rules of virtual models may compare; never its text."""

    __slots__ = ("headers", "json", "prompt_tokens", "stream", "tenant", "tools")

    def __init__(
        self,
        *,
        tenant: str,
        prompt_tokens: int,
        tools: bool,
        json: bool,
        stream: bool,
        headers: Mapping[bytes, bytes],
    ) -> None:
        self.tenant = tenant
        self.prompt_tokens = prompt_tokens  # estimated
        self.tools = tools
        self.json = json  # an answer in JSON is asked for
        self.stream = stream
        self.headers = headers  # names in lower case


class ModelPath:
    """How a request for a virtual name is served: real model, checks of its answer, stronger model.

    Shared between requests, so read-only.
    """

    __slots__ = ("checks", "escalate", "ladder", "model", "reason")

    def __init__(
        self, model: str, checks: tuple[str, ...], escalate: str | None, reason: str, ladder: str
    ) -> None:
        self.model = model  # a real one
        self.checks = checks  # of the answer; empty: it goes out as it is
        self.escalate = escalate  # asked once, when a check fails
        self.reason = reason
        self.ladder = ladder  # the virtual name whose ladder may move it down; empty: none

    def __repr__(self) -> str:
        return f"ModelPath({self.model!r}, {self.reason!r})"


class VirtualModels:
    """Finds the real model for a virtual name, by the rules, hooks and ladders of the fleet file.

    ``models``: the real models that a hook may name. ``hook_errors`` counts failed calls by hook.
    Raises ``ConfigError`` when built with a hook that cannot be imported.
    """

    __slots__ = ("_ladders", "_leads_to", "_paths", "_rules", "hook_errors")

    def __init__(
        self, sections: Sequence[VirtualSection], models: Collection[str] = _NO_MODELS
    ) -> None:
        self.hook_errors: dict[str, int] = {}
        self._ladders: dict[str, str] = {}  # to the first rung
        self._paths: dict[str, ModelPath] = {}  # where no rule is asked: ladders, defaults
        self._rules: dict[str, tuple[_Rule, ...]] = {}
        for section in sections:
            ladder = section.degrade_config()
            if ladder is not None:
                self._ladders[section.name] = ladder.ladder[0]
        for name in self._ladders:
            self._paths[name] = self._path(name, "a ladder")
        self._leads_to = {
            section.name: frozenset(model for _, model in section.leads_to())
            for section in sections
        }
        targets = frozenset(models) | frozenset(self._ladders)
        for index, section in enumerate(sections):
            rules = []
            for number, rule in enumerate(section.rules):
                where = f"virtual_models.{index}.rules.{number}"
                rules.append(self._compiled(rule, number, where, targets))
            if section.leads_by_rules:
                self._rules[section.name] = tuple(rules)
            if section.default is not None:
                self._paths[section.name] = self._path(section.default, "no rule matches")

    def __contains__(self, name: str) -> bool:
        return name in self._paths or name in self._rules

    def leads_to(self, name: str, model: str) -> bool:
        """Whether the rules or the ladder of a virtual name may lead to this model.

        What a hook may name besides is not known.
        """
        found = self._leads_to.get(name, _NO_MODELS)
        return model in found or any(model in self._leads_to.get(one, _NO_MODELS) for one in found)

    def resolve(self, name: str, facts: RequestFacts) -> ModelPath | None:
        """Return how a request for this virtual name is served: by the first rule that matches.

        Else by its default or ladder; None if it has neither, or is no virtual name. May call the
        operator's hook, whose errors are counted and do not match.
        """
        for rule in self._rules.get(name, ()):
            if not rule.matches(facts):
                continue
            if rule.hook is None:
                return rule.path
            path = self._ask(rule, name, facts)
            if path is not None:
                return path
        return self._paths.get(name)

    def _ask(self, rule: "_Rule", name: str, facts: RequestFacts) -> ModelPath | None:
        """What the rule's hook makes of it; ``None``: no match."""
        assert rule.hook is not None, "only rules with a hook are asked"
        try:
            answer = rule.hook(rule.facts_for_hook(name, facts))
        except Exception:  # noqa: BLE001 - foreign code: whatever it raises costs one rule only
            answer = None
        if answer is True and rule.path is not None:
            return rule.path
        if answer is False:
            return None
        path = rule.paths.get(answer) if isinstance(answer, str) else None
        if path is None:
            self.hook_errors[rule.hook_name] += 1
        return path

    def _compiled(
        self, rule: RuleSection, number: int, where: str, targets: frozenset[str]
    ) -> "_Rule":
        checks, escalate, reason = tuple(rule.check), rule.escalate, f"rule {number + 1}"
        path = None
        if rule.use is not None:
            path = self._path(rule.use, reason, checks, escalate)
        hook = rule.when.hook
        if hook is None:
            return _Rule(rule.when, path, None, {})
        self.hook_errors[hook] = 0
        reason = f"{reason}, by its hook"
        paths = {}
        for model in targets:
            # The strong model itself has nobody to escalate to.
            checked = model != escalate
            paths[model] = self._path(
                model, reason, checks if checked else (), escalate if checked else None
            )
        return _Rule(rule.when, path, load_hook(hook, f"{where}.when.hook"), paths)

    def _path(
        self, target: str, reason: str, checks: tuple[str, ...] = (), escalate: str | None = None
    ) -> ModelPath:
        rung = self._ladders.get(target)
        if rung is None:
            return ModelPath(target, checks, escalate, reason, "")
        return ModelPath(rung, checks, escalate, reason, target)


class _Rule:
    """One rule, ready to be compared. ``None`` stands for a test that was not asked for."""

    __slots__ = (
        "_header",
        "_hook_headers",
        "_json",
        "_longest",
        "_shortest",
        "_stream",
        "_tenants",
        "_tools",
        "hook",
        "hook_name",
        "path",
        "paths",
    )

    def __init__(
        self,
        when: WhenSection,
        path: ModelPath | None,
        hook: Hook | None,
        paths: dict[str, ModelPath],
    ) -> None:
        self.path = path
        self.paths = paths  # by the model that the hook names
        self.hook = hook
        self.hook_name = when.hook or ""
        self._hook_headers = tuple((name.encode(), name) for name in when.hook_headers)
        self._tenants = None if when.tenant is None else frozenset(when.tenant)
        self._shortest = when.prompt_tokens_min or 0
        longest = when.prompt_tokens_max
        self._longest = 1 << 62 if longest is None else longest
        self._tools = when.tools
        self._json = when.wants_json
        self._stream = when.stream
        self._header = tuple((name.encode(), text.encode()) for name, text in when.header.items())

    def matches(self, facts: RequestFacts) -> bool:
        """Whether every test holds; the hook is not asked here."""
        if self._tenants is not None and facts.tenant not in self._tenants:
            return False
        if not self._shortest <= facts.prompt_tokens <= self._longest:
            return False
        if self._tools is not None and facts.tools is not self._tools:
            return False
        if self._json is not None and facts.json is not self._json:
            return False
        if self._stream is not None and facts.stream is not self._stream:
            return False
        for name, text in self._header:  # noqa: SIM110 - a generator costs more than the tests
            if facts.headers.get(name) != text:
                return False
        return True

    def facts_for_hook(self, name: str, facts: RequestFacts) -> dict[str, Any]:
        """Plain values of its own: a hook may do with them what it likes."""
        sent = facts.headers
        return {
            "model": name,
            "tenant": facts.tenant,
            "prompt_tokens": facts.prompt_tokens,
            "tools": facts.tools,
            "json": facts.json,
            "stream": facts.stream,
            "headers": {
                text: sent[raw].decode("latin-1") for raw, text in self._hook_headers if raw in sent
            },
        }


def load_hook(name: str, field: str) -> Hook:
    """Import and return the function named ``module:function``.

    Raises ``ConfigError`` for ``field`` if the import fails, there is no such function, or it is a
    coroutine function.
    """
    module_name, _, function_name = name.partition(":")
    try:
        module = import_module(module_name)
    except Exception as error:
        problem = f"is {name!r}: importing {module_name} raised {type(error).__name__}"
        fix = "install the module where the gateway runs, and import it by hand to see why"
        raise ConfigError(field, problem, fix) from error
    found = getattr(module, function_name, None)
    if not callable(found):
        problem = f"is {name!r}: the module has no such function"
        raise ConfigError(field, problem, "write package.module:function")
    if iscoroutinefunction(found):
        problem = f"is {name!r}, which is a coroutine: nothing here can wait for it"
        raise ConfigError(field, problem, "use a plain function that returns at once")
    hook: Hook = found
    return hook


def is_json(text: str | bytes) -> bool:
    """Whether a text is a JSON object or list; single strings and numbers are not enough."""
    try:
        return isinstance(orjson.loads(text), dict | list)
    except orjson.JSONDecodeError:
        return False


__all__ = ["Hook", "ModelPath", "RequestFacts", "VirtualModels", "is_json", "load_hook"]
