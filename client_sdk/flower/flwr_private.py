"""What this project uses of flwr beside its public API. Nothing else imports it; a test names each.

============================================= =======================================================================
``Message(metadata=)``                        a message with the metadata that the other side gave it
``Metadata.__dict__["_message_id"]``          the id of a message that has been pushed
``TaskIdentity``                              who creates messages in this process
``Run``                                       what ``Grid.run`` returns
``NodeInfo``                                  what ``Grid.get_nodes`` returns
``validate_config``                           whether flwr accepts a pyproject.toml
``flatten_dict``, ``fuse_dicts``              the run's configuration as an app sees it
``parse_config_args``                         the types of overrides
``collect_files``, ``filter_paths_for_publish``, ``get_filtered_fab_paths``   which files flwr would pack
``load_app``                                  the object that a component names
``SUPERLINK_NODE_ID``                         the node id of a ServerApp
============================================= =======================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Error, Message, Metadata, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID as SERVER_NODE
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["SERVER_NODE", "NodeInfo", "Run"]


def received_message(content: RecordDict | Error, metadata: Metadata) -> Message:
    """A message that has arrived, with its own metadata."""
    message: Any = Message
    made: Message = message(content, metadata=metadata)
    return made


def set_message_id(message: Message, message_id: str) -> None:
    """Set the id of a message, which Flower gives to it when it is pushed."""
    message.metadata.__dict__["_message_id"] = message_id


def create_messages_as(node: int, run: int) -> None:
    """Have messages that this process creates come from this node, or from the ServerApp (``SERVER_NODE``), in the run
    with this number."""
    TaskIdentity.run_id = run
    TaskIdentity.node_id = node
    TaskIdentity.task_id = 1


def run_of(number: int, name: str, version: str, digest: str, config: Mapping[str, Any]) -> Run:
    """What Flower knows of a run of an app."""
    run = Run.create_empty(number)
    run.fab_id, run.fab_version, run.fab_hash, run.override_config = name, version, digest, dict(config)
    return run


def node_info(node: int) -> NodeInfo:
    """What ``Grid.get_nodes`` tells of a node."""
    return NodeInfo(node_id=node)


def problems_of_config(config: dict[str, Any]) -> list[str]:
    """What flwr finds wrong in a pyproject.toml; empty where nothing is."""
    from flwr.common.config import validate_config

    try:
        return [] if (found := validate_config(config, check_module=False))[0] else found[1]
    except ValueError as error:  # of a value of the run-config
        return [str(error)]


def flat_config(config: dict[str, Any]) -> dict[str, Any]:
    """A nested configuration with dotted keys. ValueError for values that Flower does not take."""
    from flwr.common.config import flatten_dict

    return dict(flatten_dict(config))


def parse_overrides(given: list[str]) -> dict[str, Any]:
    """Overrides of the run's configuration, typed as TOML. ValueError where they cannot be read."""
    from flwr.common.config import parse_config_args

    try:
        return parse_config_args(given)
    except (ValueError, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - click's own, of whichever copy of click flwr has
        raise ValueError(getattr(error, "message", str(error))) from None


def packed_files(folder: Path, config: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """The files that ``flwr build`` packs, sorted, pyproject.toml left out: each one's path in the app, and its bytes.

    ValueError where flwr refuses them.
    """
    from flwr.cli.build import get_filtered_fab_paths
    from flwr.cli.utils import collect_files, filter_paths_for_publish

    files = filter_paths_for_publish(collect_files(folder.resolve()))
    for path in sorted(get_filtered_fab_paths(files, config)):
        found = files[path]
        yield path, found if isinstance(found, bytes) else found.read_bytes()


def load_component(reference: str, folder: Path, error: type[Exception]) -> object:
    """The object that ``module:attribute`` names in an app's folder. Raises ``error`` for a reference that leads
    nowhere, and whatever the import raises."""
    from flwr.supercore.object_ref import load_app

    found: object = load_app(reference, error, folder)
    return found
