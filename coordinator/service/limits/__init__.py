"""What one address and one caller may use: requests, connections, bytes. Its memory is bounded.

::

    Acceptor ---- a connection: does this address have too many? ------------> closed without an answer
    BoundedHttp - a head: whose address is it, does it send too many? -------> 429
    Edge -------- an answer: too many refusals for credentials or form? ------> no new connection
    routes ------ the caller is known: does it send too many? ---------------> 429
    bodies ------ bytes and bodies under way: of this peer, of all ----------> 429, 503
"""

from coordinator.service.limits.admission import Admission, Visit
from coordinator.service.limits.in_flight import InFlight

__all__ = ["Admission", "InFlight", "Visit"]
