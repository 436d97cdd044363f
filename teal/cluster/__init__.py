"""Ray: the processes of a cluster, started only where they were asked for."""
