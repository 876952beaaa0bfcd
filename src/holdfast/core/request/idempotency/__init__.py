"""One execution and one terminal answer per idempotency key, over all gateways.

``key_record`` holds what is known of one key and its states, ``key_policy`` every change of it,
``owner_watch`` whether the gateway that executes is still alive.
"""
