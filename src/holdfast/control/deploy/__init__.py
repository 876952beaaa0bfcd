"""What should run, and making it so: the fleet file, discovery, launched replicas, demand.

Here belongs what drives ``core.deploy`` and the launchers. May import ``control.gateways``,
``control.fleet`` and what lies below.
"""
