"""Config files: one strict reader, and errors that name the file, the line, the field and the fix.

A file passes through three sieves: YAML, read with its line marks and without YAML's surprises
(``document``); the types of a tree of sections; and the checks of the core's own frozen configs,
which run inside the second sieve so that a refusal deep in a policy still points at a line
(``sections``). Whatever is refused becomes a sentence in one table (``error_messages``). Only
``files`` touches the disk.
"""
