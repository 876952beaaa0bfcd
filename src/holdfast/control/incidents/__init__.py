"""Drives ``core.diagnose``: collects facts, keeps incidents, notifies people, performs acts.

Here belongs what turns observations of this host, of launches, canaries and gateways into facts,
and what is done with the incidents that come out. May import ``control.deploy`` and what lies
below.
"""
