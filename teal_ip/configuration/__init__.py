"""Configuration of routers, and other forms in which they take an allocation: `teal export`."""
