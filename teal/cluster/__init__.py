"""Ray clusters, started only on request."""
