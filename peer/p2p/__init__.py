"""Run the libp2p host on a thread of its own."""
