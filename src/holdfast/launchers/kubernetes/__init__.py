"""Launches replicas as workloads of a Kubernetes cluster: one workload for each replica.

    control ── KubernetesLauncher ── create, patch, delete ─► Deployment | StatefulSet | LWS ─► pod
                    ▲  ▲                                                                         │
                    │  └──────────── watch of pods (and nodes) ◄─────────────────────────────────┤
                    └─────────────── its log, followed ◄─────────────────────────────────────────┘

A workload of one replica, because control starts and stops replicas one by one: which of them a
rollout replaces next, which one is the canary, which one a smaller fleet loses is decided by the
core, for Kubernetes as for processes and Ray.

Rejected: one workload with many pods. A Deployment that is scaled down ends a pod of its own
choice, and one that is rolled out asks no canary. Rejected: bare pods. Nobody would bring a replica
back while no control is there to do it.

What a replica is and how it ended is kept on its workload, as annotations: another control on
another host, without the first one's files, goes on from there.
"""
