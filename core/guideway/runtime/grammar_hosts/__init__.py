"""Grammar hosts: processes in which strategies compile and fill, so that what crashes, hangs or eats the memory there
costs one request and not the server.

`HostedStrategy` stands in the serving process for a strategy that lives in hosts, and obeys the same contract::

    serving process                 fork server                       forked from it
    HostedStrategy ─ GrammarHosts ─ imports and builds strategies ─┬─ compile hosts: supports, compile
                                                                   └─ matcher hosts: one, and one for slow sequences;
                                                                      shared memory
"""
