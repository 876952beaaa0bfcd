"""Drives ``core.diagnose``: collects facts, stores incidents, notifies people, carries out acts.

Here belongs what turns observations of this host, of launches, canaries and gateways into facts,
and what is done with the incidents that come out. May import ``control.deploy`` and what lies
below.
"""
