"""The control process: watches replicas and configures gateways; no request waits for it.

``process`` puts the packages together. Imports go down only: process, admin, view, incidents,
deploy, gateways, fleet, access, and last ``fetch``, ``http_client``, ``detached_call`` and
``lookup_errors``, which any of them may use.
"""
