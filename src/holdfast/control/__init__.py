"""The control process: it watches the fleet and tells gateways; no request ever waits for it.

``process`` puts the packages together. Imports go down only: process, admin, view, incidents,
deploy, gateways, fleet, access, and last ``fetch``, ``http_client``, ``detached`` and
``lookup_errors``, which any of them may use.
"""
