"""Questions about deployments that a simulation answers in virtual time: ``quorate ask QUESTION`` plays a few runs and
writes one picture and one page.

=========== ========================================================================================================
setting     the fleet, the data and the plan that all questions share
measures    what is measured of a run: hours, bytes, device-hours, who was heard
questions   which runs each question compares, and in which numbers; plays them, and writes the picture and the page
=========== ========================================================================================================
"""

from __future__ import annotations

from simulation.questions.questions import QUESTIONS, Answer, ask
from simulation.questions.setting import Setting

__all__ = ["QUESTIONS", "Answer", "Setting", "ask"]
