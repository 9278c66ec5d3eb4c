"""``simulate()`` and its parts: checks of its arguments, the first model, scores, progress.

The room is not named ``simulate``: importing a submodule binds its name on the package, and would replace the function
``simulation.simulate`` by a module.
"""
