"""Launches replicas as actors of a Ray cluster.

    control ── RayLauncher ══ JSON lines ══ bridge (Ray's driver) ══ Ray ══ ReplicaHost ─► engine
             (this process)               (a child process)             (an actor on a node)

Control never imports Ray: a driver of Ray is ended by Ray itself when its cluster goes, and control
must outlive every platform. So the driver is a child process that is started again.
"""
