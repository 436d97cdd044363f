"""What is installed, in the form in which routers take it: `teal export`."""
