"""Who is who: certificates, revocations, enrolment tokens and signed requests, as bytes and checks.

The authority has an Ed25519 key. It certifies each device's and each worker's own Ed25519 key, and signs a list of the
keys that are revoked. The holder of a key signs each request. The files, lowest first::

    errors             all errors
    canonical          the canonical encoding, with this room's error; the prefix of each thing that is signed, so
                       that none is taken for another
    identity_keys      which 32 bytes are a public key; the id of a key; the authority's key, pinned by its SHA-256
    certificate        what the authority signs: its word on one key (its holder's id and class, from when, until when),
                       and its list of revoked keys, with which list may follow which
    enrolment_token    what an operator hands to a device: where the authority is, its key's digest, a secret; and what
                       a new key signs, to show that its sender has the private half
    request_signature  a signed HTTP request (RFC 9421, one strict form); the requests that were seen, for as long as
                       they could be sent again

Nothing here reads a clock, draws a random number or opens a socket: times and random bytes are arguments.

Certificates are in a form of our own, since a roster carries 300 of them: at most 171 bytes each, where X.509 has 270
to 330, with extensions and encodings that each device would have to refuse. No field is optional, so each has one
form. Requests have one strict form of RFC 9421, which one regular expression parses; a signature's domain is a prefix
that begins no other, and RFC 9421's requests begin with ``"@method"``. Where the window of nonces is full, a request
is answered *busy*: forgetting the oldest would let whoever fills the window replay.
"""
