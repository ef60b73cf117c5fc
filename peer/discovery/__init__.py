"""Find peers without the coordinator: address book, exchange, mDNS."""
