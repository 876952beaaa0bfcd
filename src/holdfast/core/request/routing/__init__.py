"""Routing policies: each decides which replica gets a request; ``build`` makes one by name.

    round_robin · weighted · least_loaded · power_of_two · token_work      choose by themselves
    prefix_affinity · session_affinity · zone_preference · length_classes · kv_headroom
                                                                           wrap an inner policy

A wrapper's ``inner`` setting is a name, or a mapping with a ``name`` and that policy's settings:
wrappers nest. Own zone first, in it by prefix, in doubt the cheaper of two.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from random import Random
from typing import Any, Final, TypeVar

from holdfast.core.request.routing.kv_headroom import KvHeadroom, KvHeadroomConfig
from holdfast.core.request.routing.least_loaded import LeastLoaded
from holdfast.core.request.routing.length_classes import LengthClasses, LengthClassesConfig
from holdfast.core.request.routing.policy import Choice, RoutingPolicy
from holdfast.core.request.routing.power_of_two import PowerOfTwo, PowerOfTwoConfig
from holdfast.core.request.routing.prefix_affinity import PrefixAffinity, PrefixAffinityConfig
from holdfast.core.request.routing.round_robin import RoundRobin
from holdfast.core.request.routing.session_affinity import SessionAffinity, SessionAffinityConfig
from holdfast.core.request.routing.token_work import TokenWork, TokenWorkConfig
from holdfast.core.request.routing.weighted import Weighted
from holdfast.core.request.routing.zone_preference import ZonePreference, ZonePreferenceConfig
from holdfast.core.types import ConfigError

DEFAULT: Final = "power_of_two"

Inner = str | Mapping[str, Any]
"""An inner policy as configs name it."""

_KINDS: Final[dict[type, str]] = {str: "text", int: "a whole number", float: "a number"}

_Config = TypeVar("_Config")


def build(name: str, rng: Random, **config: Any) -> RoutingPolicy:
    """Build the routing policy of this name with these settings.

    Raises ``ConfigError`` for an unknown name, an unknown setting or a bad value.
    """
    factory = POLICIES.get(name)
    if factory is None:
        raise ConfigError("routing.policy", f"is {name!r}", f"use one of {', '.join(POLICIES)}")
    return factory(rng, **config)


def _settings(policy: str, config_type: Callable[..., _Config], given: dict[str, Any]) -> _Config:
    """Build a policy's config from a mapping of settings; raise ``ConfigError`` for bad ones."""
    kind_of: Any = config_type  # a dataclass, which its type cannot say
    defaults = {field.name: field.default for field in fields(kind_of)}
    _refuse_unknown(policy, list(defaults), given)
    for name, value in given.items():
        kind = type(defaults[name])
        if isinstance(value, bool) or not isinstance(
            value, (int, float) if kind is float else kind
        ):
            raise ConfigError(f"{policy}.{name}", f"is {value!r}", f"use {_KINDS[kind]}")
    return config_type(**given)


def _refuse_unknown(policy: str, known: list[str], given: dict[str, Any]) -> None:
    for name in given:
        if name not in known:
            fix = f"use one of {', '.join(known)}" if known else "it has none"
            raise ConfigError(f"{policy}.{name}", "is no setting of this policy", fix)


def _inner(rng: Random, inner: object) -> RoutingPolicy:
    if isinstance(inner, str):
        return build(inner, rng)
    if isinstance(inner, Mapping) and isinstance(inner.get("name"), str):
        return build(rng=rng, **inner)
    fix = 'use a policy\'s name, or {"name": …} with its settings'
    raise ConfigError("routing.inner", f"is {inner!r}", fix)


def _bare(name: str, make: Callable[[Random], RoutingPolicy]) -> Callable[..., RoutingPolicy]:
    def factory(rng: Random, **config: Any) -> RoutingPolicy:
        _refuse_unknown(name, [], config)
        return make(rng)

    return factory


def _tuned(
    name: str, make: Callable[[Random, _Config], RoutingPolicy], config_type: Callable[..., _Config]
) -> Callable[..., RoutingPolicy]:
    def factory(rng: Random, **config: Any) -> RoutingPolicy:
        return make(rng, _settings(name, config_type, config))

    return factory


def _wrapping(
    name: str,
    make: Callable[[RoutingPolicy, _Config], RoutingPolicy],
    config_type: Callable[..., _Config],
) -> Callable[..., RoutingPolicy]:
    def factory(rng: Random, inner: Inner = DEFAULT, **config: Any) -> RoutingPolicy:
        return make(_inner(rng, inner), _settings(name, config_type, config))

    return factory


def _length_classes(rng: Random, inner: Inner = DEFAULT, **config: Any) -> RoutingPolicy:
    settings = _settings("length_classes", LengthClassesConfig, config)
    return LengthClasses(_inner(rng, inner), _inner(rng, inner), settings)


POLICIES: Final[dict[str, Callable[..., RoutingPolicy]]] = {
    "power_of_two": _tuned("power_of_two", PowerOfTwo, PowerOfTwoConfig),
    "round_robin": _bare("round_robin", lambda _: RoundRobin()),
    "weighted": _bare("weighted", Weighted),
    "least_loaded": _bare("least_loaded", LeastLoaded),
    "token_work": _tuned("token_work", TokenWork, TokenWorkConfig),
    "prefix_affinity": _wrapping("prefix_affinity", PrefixAffinity, PrefixAffinityConfig),
    "session_affinity": _wrapping("session_affinity", SessionAffinity, SessionAffinityConfig),
    "kv_headroom": _wrapping("kv_headroom", KvHeadroom, KvHeadroomConfig),
    "zone_preference": _wrapping("zone_preference", ZonePreference, ZonePreferenceConfig),
    "length_classes": _length_classes,
}

__all__ = ["DEFAULT", "POLICIES", "Choice", "Inner", "RoutingPolicy", "build"]
