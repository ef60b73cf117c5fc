"""Hold what the relay's decisions are made from: its state, the events that change it, the actions that follow.

relay_state                    links, encodings, plan, heirs of relays that failed
actions  chunk_set  window     what the shell is to do; sets of chunks; how much a peer is given at a time
events                         what happened
"""
