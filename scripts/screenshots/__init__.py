"""Pictures of the dashboard with real data: ``python -m scripts.screenshots``.

::

    camera    a browser that opens a coordinator's page in both themes and at both sizes
    scenes    what is played before the camera: real commands of Quorate, real data
"""
