"""HTTP and sockets: the server for clients, the connections to replicas, the framing of both.

Here belongs what knows HTTP and sockets. It knows no model, no tenant and no OpenAI body. May
import values of ``core``, and nothing of the gateway but this package.
"""
