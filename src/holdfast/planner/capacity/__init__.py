"""Plans replicas for a traffic: sizes, tiers, risks, and a simulation to confirm."""
