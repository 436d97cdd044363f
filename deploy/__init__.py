"""What runs Teal elsewhere: containers, clusters, and a laboratory of routers."""
