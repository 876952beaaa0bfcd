"""Config files: one strict reader, and errors that name the file, the line, the field and the fix.

A file passes through three sieves: YAML, read with its line marks and without YAML's surprises
(``document``); the types of a tree of sections; and the checks of the core's own frozen configs,
which run inside the second sieve so that a refusal deep in a policy still points at a line
(``sections``). Whatever is refused becomes a sentence in one table (``translate``). Only ``files``
touches the disk.
"""

from holdfast.config.document import ConfigFileError, Problem
from holdfast.config.files import json_schema, load
from holdfast.config.fleet_file import Deployed, FleetFile
from holdfast.config.sections import Duration, Policy, PolicySection, Section, policy_section
from holdfast.config.tenants import hash_key, new_key

__all__ = [
    "ConfigFileError",
    "Deployed",
    "Duration",
    "FleetFile",
    "Policy",
    "PolicySection",
    "Problem",
    "Section",
    "hash_key",
    "json_schema",
    "load",
    "new_key",
    "policy_section",
]
