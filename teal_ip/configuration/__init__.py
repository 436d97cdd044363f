"""Router configuration and other export formats of allocations: ``teal export``."""
