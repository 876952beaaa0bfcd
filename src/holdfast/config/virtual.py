"""Config of virtual models: one public name with several models behind it.

A virtual model is a *ladder* (under load a growing share is answered one rung lower, and the answer
says so) or a list of *rules* (the first that matches chooses the model). A rule may have the cheap
answer checked and, once, the strong model asked instead.

Rejected: an expression language for conditions. It would need a parser, an evaluator and limits of
its own; what the named tests cannot say, a Python hook says in a language that people can test.
"""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from holdfast.config.sections import Policy, Section
from holdfast.config.tenants import Name
from holdfast.core.request.ladders.degrade import DegradeConfig
from holdfast.core.types import ConfigError, require

Check = Literal["length", "json", "empty"]

_HOOK: Final = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"
_HEADER: Final = r"^[a-z0-9!#$%&'*+.^_`|~-]+$"
_SECRET_HEADERS: Final = frozenset(
    {"authorization", "proxy-authorization", "cookie", "api-key", "x-api-key"}
)

HeaderName = Annotated[str, Field(pattern=_HEADER, max_length=64)]


class WhenSection(Section):
    """Conditions on a request; all that are given must hold, and none matches all requests."""

    tenant: Annotated[list[str], Field(min_length=1)] | None = None
    prompt_tokens_min: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="tokens"
    )
    prompt_tokens_max: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="tokens"
    )
    tools: bool | None = None
    wants_json: bool | None = Field(default=None, alias="json")  # its name is pydantic's own
    stream: bool | None = None
    header: Annotated[dict[HeaderName, str], Field(max_length=8)] = Field(default_factory=dict)
    hook: Annotated[str, Field(pattern=_HOOK)] | None = None  # package.module:function
    hook_headers: Annotated[list[HeaderName], Field(max_length=16)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _tests_fit(self) -> Self:
        low, high = self.prompt_tokens_min, self.prompt_tokens_max
        fits = low is None or high is None or low <= high
        fix = f"use at least when.prompt_tokens_min, {low}"
        require(fits, "when.prompt_tokens_max", f"is {high}: nothing can match", fix)
        hooked = self.hook is not None or not self.hook_headers
        require(hooked, "when.hook_headers", "is set without a hook", "name a hook, or remove it")
        for field, names in (("header", [*self.header]), ("hook_headers", self.hook_headers)):
            for name in names:
                fix = "use another header; tell callers apart by 'tenant'"
                require(name not in _SECRET_HEADERS, f"when.{field}", f"reads {name!r}", fix)
        return self

    @property
    def always(self) -> bool:
        """Whether these conditions match every request."""
        return self == WhenSection()


class RuleSection(Section):
    """One rule: its conditions, and the model that answers such requests."""

    when: WhenSection = WhenSection()
    use: str | None = None  # a model, or a virtual model that is a ladder
    check: Annotated[list[Check], Field(max_length=3, description="checks")] = Field(
        default_factory=list
    )
    escalate: str | None = None  # a model; asked once when a check fails

    @model_validator(mode="after")
    def _leads_somewhere(self) -> Self:
        hooked = self.when.hook is not None
        fix = "name a model, or a hook that returns one"
        require(self.use is not None or hooked, "rule.use", "is missing", fix)
        if self.check:
            fix = "name the model to ask when a check fails"
            require(self.escalate is not None, "rule.escalate", "is missing", fix)
        else:
            fix = "say in 'check' when to escalate: length, json, empty"
            require(self.escalate is None, "rule.check", "is missing", fix)
        other = self.escalate is None or self.escalate != self.use
        fix = "name a stronger model than rule.use"
        require(other, "rule.escalate", f"is {self.escalate!r}, which has just failed", fix)
        once = len(dict.fromkeys(self.check)) == len(self.check)
        require(once, "rule.check", "names a check twice", "name each once")
        return self


class VirtualSection(Section):
    """One virtual model: a ladder, or rules with a default."""

    name: Annotated[Name, Field(description="the name that clients use", examples=["auto"])]
    ladder: list[str] | None = None  # models, best first
    degrade: Annotated[DegradeConfig, Policy()] | None = None  # a ladder with its thresholds
    rules: Annotated[list[RuleSection], Field(max_length=256)] = Field(default_factory=list)
    default: str | None = None  # for whoever no rule matches

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        ladders = (self.ladder is not None) + (self.degrade is not None)
        ruled = bool(self.rules) or self.default is not None
        fix = "use one of: ladder (model names), degrade (a ladder with thresholds), rules"
        require(ladders + ruled > 0, "virtual", "leads to no model", fix)
        if ladders + ruled > 1:
            extra = "degrade" if self.degrade is not None else "ladder"
            raise ConfigError(f"virtual.{extra}", "is one way too many", f"{fix}; keep one")
        if ruled:
            self._check_rules()
        else:
            self.degrade_config()
        return self

    def _check_rules(self) -> None:
        open_ended = [rule.when.always for rule in self.rules]
        if True in open_ended:
            last = open_ended.index(True)
            follows = last + 1 < len(open_ended)
            fix = "give the rule before it a 'when', or remove this one"
            require(not follows, f"virtual.rules.{last + 1}", "can never match", fix)
            fix = "remove it, or give the last rule a 'when'"
            require(self.default is None, "virtual.default", "can never be used", fix)
        else:
            fix = "name the model for requests that no rule matches"
            require(self.default is not None, "virtual.default", "is missing", fix)

    def degrade_config(self) -> DegradeConfig | None:
        """The ladder as the core's config; ``None`` for rules."""
        if self.ladder is None:
            return self.degrade
        try:
            return DegradeConfig(ladder=tuple(self.ladder))
        except ConfigError as bad:
            raise ConfigError("virtual.ladder", f"is {', '.join(self.ladder)!r}", bad.fix) from bad

    @property
    def leads_by_rules(self) -> bool:
        """Whether the virtual model has rules and no ladder."""
        return self.ladder is None and self.degrade is None

    def leads_to(self) -> list[tuple[str, str]]:
        """All models it may ask, each with the field that names it."""
        found = [(f"ladder.{i}", model) for i, model in enumerate(self.ladder or ())]
        if self.degrade is not None:
            found += [(f"degrade.ladder.{i}", m) for i, m in enumerate(self.degrade.ladder)]
        for index, rule in enumerate(self.rules):
            for field, model in (("use", rule.use), ("escalate", rule.escalate)):
                if model is not None:
                    found.append((f"rules.{index}.{field}", model))
        if self.default is not None:
            found.append(("default", self.default))
        return found


__all__ = ["Check", "RuleSection", "VirtualSection", "WhenSection"]
