"""The coordinator over HTTP: routes for devices and operators under ``/v1``, an event stream, health, meters, docs.

It is the asynchronous edge of a synchronous core: the event loop moves bytes and waits, threads do the rest.
"""

from coordinator.service.app import create_app

__all__ = ["create_app"]
