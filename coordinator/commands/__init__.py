"""The coordinator's commands: ``quorate serve``, and commands of operators, which call a coordinator over HTTP."""
