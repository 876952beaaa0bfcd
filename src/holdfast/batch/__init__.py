"""Serves OpenAI Files and Batches, and works batches off, in a process of its own.

Here belongs what turns an uploaded JSONL file into requests to the gateway and their answers into
an output file. What a queue promises is in ``ports``; when and how much may run is in
``core.batch``.
"""
