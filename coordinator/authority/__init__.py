"""The authority certifies the keys of devices and workers, in a process and folder of its own.

A coordinator holds the authority's public key only, so it cannot make devices up. The files, lowest first::

    ledger            what it stores, in SQLite: tokens, holders, keys, its list, who did what when
    issuer            the key with the policy: signs certificates and the current list, makes tokens, revokes
    folder            the authority's folder: its key, its policy, its ledger
    proofs            the port that says who a device is, beside its token
    answering         the requests of the holders of keys: enrols, renews and rotates
    app               the same over HTTP, in a process of its own or, for trials, inside a coordinator

Operators act on the folder by ``quorate authority`` on the authority's machine; nothing of theirs is served.

A list's counter is the time, or one more than the last where that is higher, so a ledger that is restored from a
backup signs no number twice, which devices would take for a forgery. A revoked key stays listed for five minutes after
its certificates have expired: a reader whose clock is behind refuses the list without it.
"""
