"""What one address and one caller may use: requests, connections, bytes. Its memory is bounded.

::

    Acceptor ---- a connection: does this address have too many? ------------> closed without an answer
    BoundedHttp - a head: whose address is it, does it send too many? -------> 429
    Edge -------- an answer: too many refusals for credentials or form? ------> no new connection
    routes ------ the caller is known: does it send too many? ---------------> 429
    bodies ------ bytes and bodies under way: of this peer, of all ----------> 429, 503

An address has two buckets, since requests alone do not tell an attacker from a hospital, and refusals for credentials
or form do. One bucket, from which a refusal took ten tokens, cost the server 0.23 s of CPU a second under attack, two
cost 0.06. Statuses that honest devices meet (404, 409, 422, 426) are not counted. A refusal takes one token, down to
minus one burst: more, and devices that return as told would never bring a crowded address above zero. ``Retry-After``
is drawn from one to two times the wait, so they do not return together. 127.0.0.1 and ::1 are not counted: a simulated
fleet has one address. Bandwidth and floods of handshakes are left to a proxy or the kernel.
"""

from coordinator.limits.admission import Admission, AdmittedConnection, InFlight

__all__ = ["Admission", "AdmittedConnection", "InFlight"]
