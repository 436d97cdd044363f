"""IGP routing, segment lists and tunnels: loads now, under failures and with growth."""
