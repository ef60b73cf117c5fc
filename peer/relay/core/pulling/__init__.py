"""Request the chunks that pushing did not bring, or will not.

Late joiners, resumed and slow peers, dead relays and the end of a broadcast are all the same case: a chunk did not
come, and another process holds it. A source is asked what it holds (Want), answers now and as that grows (Have), and is
asked for chunks by number (Request), a window of them at a time. A chunk that a source does not send in time is
requested from another one as well.

    pull                  begins, continues and ends it
    requests  sources     which chunks are requested of whom; who is asked what it holds
    late                  which chunks pushing should have brought by now
"""
