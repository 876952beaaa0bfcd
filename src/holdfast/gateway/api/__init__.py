"""Reads, checks and rewrites OpenAI request bodies, answers and errors.

Here belongs what understands a request's or an answer's content. No sockets and no clocks. May
import ``gateway.http`` for the framing of streams, and nothing else of the gateway.
"""
