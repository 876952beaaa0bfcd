"""Config files: one strict reader, and errors that name the file, the line, the field and the fix.

A file is checked in three steps: YAML, read with its line marks and without YAML's surprises
(``document``); the types of a tree of sections; and the checks of the core's own frozen configs,
which run inside the second step so that a refusal deep in a policy still points at a line
(``sections``). One table turns every refusal into a sentence (``error_messages``). Only
``files`` touches the disk.
"""
