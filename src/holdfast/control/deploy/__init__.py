"""Which replicas should run, and starting them: fleet file, discovery, launches, demand.

Here belongs what drives ``core.deploy`` and the launchers. May import ``control.gateways``,
``control.fleet`` and what lies below.
"""
